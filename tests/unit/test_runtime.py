"""Runtimes: real ONNX models, which must prove what their manifests say before they answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from core.errors import GoldenMismatchError, ManifestError, ModelError, ProviderMissingError, UsageError
from models.device import CPU, CUDA, Device
from models.dtype import Dtype
from models.folder import ModelFolder
from models.inference import InferenceThread
from models.runtime import Runtime
from tests.unit.graphs import folder, forecast, linear, lookup


@pytest.fixture
async def thread() -> AsyncIterator[InferenceThread]:
    running = InferenceThread()
    yield running
    await running.close()


async def load(path: Path, thread: InferenceThread, device: str = "cpu") -> Runtime:
    return await asyncio.to_thread(Runtime, ModelFolder.open(path, "churn", "1"), Device.of(device), thread)


def column(*values: float) -> dict[str, NDArray[Any]]:
    return {"X": np.array(values, np.float32).reshape(-1, 1)}


def golden(value: float, leave: float, tolerance: float = 1e-4) -> dict[str, Any]:
    return {"inputs": {"value": value}, "expected": {"leave": leave}, "tolerance": tolerance}


async def test_it_computes_what_the_graph_computes(tmp_path: Path, thread: InferenceThread) -> None:
    path = folder(tmp_path, linear(w=0.5, b=0.1), thresholds={"decision": {"label": "leave", "above": 0.5}})
    runtime = await load(path, thread)
    scores = await runtime.predict(column(0.0, 1.0, 1.5))
    assert scores.labels == ("stay", "leave")
    assert scores.matrix == pytest.approx(np.array([[0.9, 0.1], [0.4, 0.6], [0.15, 0.85]]))
    assert scores.best.tolist() == [0, 1, 1]
    assert scores.confidence == pytest.approx([0.6386, 0.0974, 0.5141], abs=1e-3)
    assert scores.low_confidence.tolist() == [True, True, True]
    assert scores.decision is not None
    assert scores.decision.tolist() == [False, True, True]
    assert scores.broken.tolist() == []
    assert len(scores) == 3


async def test_low_confidence_follows_the_manifests_threshold(tmp_path: Path, thread: InferenceThread) -> None:
    runtime = await load(folder(tmp_path, linear(), thresholds={"low_confidence": 0.5}), thread)
    scores = await runtime.predict(column(0.85, 0.6))
    assert scores.low_confidence.tolist() == [False, True]
    assert scores.decision is None


async def test_a_row_that_is_not_finite_spoils_no_other(tmp_path: Path, thread: InferenceThread) -> None:
    runtime = await load(folder(tmp_path, linear()), thread)
    scores = await runtime.predict(column(0.9, np.nan, np.inf, 1e30, 0.1))
    assert scores.broken.tolist() == [1, 2, 3]
    assert scores.matrix[[0, 4], 1] == pytest.approx([0.9, 0.1])
    assert scores.confidence is not None
    assert scores.confidence[[1, 2, 3]].tolist() == [0.0, 0.0, 0.0]
    assert scores.low_confidence[[1, 2, 3]].all()
    assert np.isfinite(scores.matrix).all()


async def test_a_regressor_gives_its_value_and_is_as_sure_as_its_interval_is_narrow(
    tmp_path: Path, thread: InferenceThread
) -> None:
    said: dict[str, Any] = {"kind": "regressor", "labels": [], "thresholds": {"decision": {"above": 5}}}
    outputs = {"value": "value", "interval": {"output": "interval", "widest": 10}}
    runtime = await load(folder(tmp_path, forecast(half_width=1.0), outputs=outputs, **said), thread)
    scores = await runtime.predict(column(3.0, 7.0))
    assert scores.labels == ("value",)
    assert scores.matrix.tolist() == [[3.0], [7.0]]
    assert scores.confidence == pytest.approx([0.8, 0.8])
    assert scores.decision is not None
    assert scores.decision.tolist() == [False, True]
    plain = await load(folder(tmp_path, forecast(1.0), outputs={"value": "value"}, **said), thread)
    scores = await plain.predict(column(3.0))
    assert scores.confidence is None
    assert scores.low_confidence.tolist() == [False]


async def test_one_column_is_the_second_labels_probability(tmp_path: Path, thread: InferenceThread) -> None:
    path = folder(tmp_path, forecast(1.0), outputs={"probabilities": "value"})
    runtime = await load(path, thread)
    assert (await runtime.predict(column(0.2))).matrix == pytest.approx(np.array([[0.8, 0.2]]))


async def test_a_float64_int64_and_string_input_is_filled_as_its_type(tmp_path: Path, thread: InferenceThread) -> None:
    inputs: dict[str, Any] = {"X": {"dtype": "float64", "fields": ["value"]}}
    runtime = await load(folder(tmp_path, linear(element=TensorProto.DOUBLE), inputs=inputs), thread)
    assert (await runtime.predict({"X": np.array([[0.25]])})).matrix[0, 1] == pytest.approx(0.25)
    inputs = {"X": {"dtype": "int64", "fields": ["value"]}}
    runtime = await load(folder(tmp_path, lookup([[0.5, 0.5], [0.1, 0.9]]), inputs=inputs), thread)
    assert (await runtime.predict({"X": np.array([[1]])})).matrix[0, 1] == pytest.approx(0.9)
    inputs = {"X": {"dtype": "string", "fields": [{"name": "value", "default": "0.75"}]}}
    path = folder(
        tmp_path,
        linear(element=TensorProto.STRING),
        inputs=inputs,
        golden=[{"inputs": {"value": None}, "expected": {"leave": 0.75}}],
    )
    runtime = await load(path, thread)
    assert (await runtime.predict({"X": np.array([["0.5"]], object)})).matrix[0, 1] == pytest.approx(0.5)


@pytest.mark.parametrize("dtype", [dtype for dtype in Dtype if dtype is not Dtype.STRING])
async def test_an_input_of_any_scalar_type_is_loaded_warmed_and_filled(
    dtype: Dtype, tmp_path: Path, thread: InferenceThread
) -> None:
    element = onnx.helper.np_dtype_to_tensor_dtype(dtype.numpy)
    one: Any = True if dtype is Dtype.BOOL else 1
    path = folder(
        tmp_path,
        linear(element=element),
        inputs={"X": {"dtype": dtype, "fields": ["value"]}},
        golden=[{"inputs": {"value": one}, "expected": {"leave": 1.0}}],
    )
    runtime = await load(path, thread)
    assert (await runtime.predict({"X": np.array([[1]], dtype.numpy)})).matrix.tolist() == [[0.0, 1.0]]


async def test_of_several_outputs_those_that_the_manifest_names_are_read(
    tmp_path: Path, thread: InferenceThread
) -> None:
    said: dict[str, Any] = {"kind": "regressor", "labels": []}
    for output in ("value", "p"):
        model = linear(w=2.0)
        extra = onnx.helper.make_tensor_value_info("p", TensorProto.FLOAT, ["n", 1])
        renamed = onnx.helper.make_node("Identity", ["X"], ["value"])
        model.graph.node.append(renamed)
        model.graph.output.extend([extra, onnx.helper.make_tensor_value_info("value", TensorProto.FLOAT, ["n", 1])])
        runtime = await load(folder(tmp_path, model, outputs={"value": output}, **said), thread)
        assert (await runtime.predict(column(0.25))).matrix.tolist() == [[0.25 if output == "value" else 0.5]]


async def test_a_sklearn_classifier_converted_without_zipmap_answers_as_sklearn_does(
    tmp_path: Path, thread: InferenceThread
) -> None:
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(7)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(int) + (x[:, 2] > 1)
    fitted = LogisticRegression().fit(x, y)
    said: dict[str, Any] = {
        "inputs": {"X": {"fields": ["a", "b", "c"]}},
        "labels": ["none", "some", "all"],
    }
    path = folder(tmp_path, to_onnx(fitted, x[:1], options={"zipmap": False}), **said)
    runtime = await load(path, thread)
    assert (await runtime.predict({"X": x})).matrix == pytest.approx(fitted.predict_proba(x), abs=1e-5)
    with_zipmap = to_onnx(fitted, x[:1])
    said["outputs"] = {"probabilities": "output_probability"}
    with pytest.raises(ManifestError, match="zipmap=False"):
        await load(folder(tmp_path, with_zipmap, **said), thread)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"inputs": {"Y": {"fields": ["value"]}}}, "no input 'Y'"),
        ({"inputs": {"X": {"fields": ["value"]}, "Z": {"fields": ["value"]}}}, "no input 'Z'"),
        ({"inputs": {"X": {"fields": ["value", "other"]}}}, r"shape \['n', 1\], the manifest fills \(n, 2\)"),
        ({"inputs": {"X": {"dtype": "int64", "fields": ["value"]}}}, r"tensor\(float\), the manifest says int64"),
        ({"outputs": {"probabilities": "scores"}}, "no output 'scores', only"),
        ({"outputs": {"probabilities": "label"}}, r"'label' is tensor\(int64\)"),
        ({"labels": ["a", "b", "c"]}, "names 3 labels"),
    ],
)
async def test_a_manifest_that_contradicts_the_graph_is_told_by_name(
    change: dict[str, Any], told: str, tmp_path: Path, thread: InferenceThread
) -> None:
    with pytest.raises(ManifestError, match=rf"^churn@1: .*{told}"):
        await load(folder(tmp_path, linear(), **change), thread)


async def test_a_graph_input_that_nothing_fills_is_told(tmp_path: Path, thread: InferenceThread) -> None:
    model = linear()
    model.graph.input.append(onnx.helper.make_tensor_value_info("Z", TensorProto.FLOAT, ["n", 1]))
    with pytest.raises(ManifestError, match="input 'Z', which the manifest doesn't fill"):
        await load(folder(tmp_path, model), thread)


async def test_a_graph_with_a_fixed_batch_size_is_told(tmp_path: Path, thread: InferenceThread) -> None:
    model = linear()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    with pytest.raises(ManifestError, match="exactly 1 rows"):
        await load(folder(tmp_path, model), thread)


async def test_logits_are_no_probabilities(tmp_path: Path, thread: InferenceThread) -> None:
    with pytest.raises(ManifestError, match="sum to 1"):
        await load(folder(tmp_path, linear(b=3.0)), thread)


async def test_a_file_that_onnx_runtime_cannot_load_is_told(tmp_path: Path, thread: InferenceThread) -> None:
    model = linear()
    model.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(ManifestError, match=r"churn@1: model\.onnx can't be loaded: .*NoSuchOperator"):
        await load(folder(tmp_path, model), thread)


async def test_golden_examples_that_are_met_let_it_live(tmp_path: Path, thread: InferenceThread) -> None:
    path = folder(tmp_path, linear(), golden=[golden(0.35, 0.35), golden(0.9, 0.91, tolerance=0.02)])
    assert (await load(path, thread)).manifest.identity == "churn@1"


async def test_a_golden_example_that_is_missed_is_told_with_what_was_expected_and_got(
    tmp_path: Path, thread: InferenceThread
) -> None:
    path = folder(tmp_path, linear(), golden=[golden(0.1, 0.1), golden(0.35, 0.25)])
    with pytest.raises(GoldenMismatchError, match=r"churn@1: golden\[1\] .*'leave': 0\.25.*got .*'leave': 0\.35}"):
        await load(path, thread)


async def test_a_golden_example_whose_answer_is_not_finite_is_missed(tmp_path: Path, thread: InferenceThread) -> None:
    path = folder(tmp_path, linear(), golden=[golden(1e38, 0.0)])
    with pytest.raises(ModelError, match="churn@1"):
        await load(path, thread)


async def test_cuda_without_a_gpu_is_an_error_and_no_quiet_cpu(tmp_path: Path, thread: InferenceThread) -> None:
    device = Device.of("cuda", [CUDA, CPU])
    opened = ModelFolder.open(folder(tmp_path, linear()), "churn", "1")
    with pytest.warns(UserWarning, match=CUDA), pytest.raises(ProviderMissingError):
        await asyncio.to_thread(Runtime, opened, device, thread)


async def test_auto_without_a_gpu_computes_on_the_cpu(tmp_path: Path, thread: InferenceThread) -> None:
    device = Device.of("auto", [CUDA, CPU])
    opened = ModelFolder.open(folder(tmp_path, linear()), "churn", "1")
    with pytest.warns(UserWarning, match=CUDA):
        runtime = await asyncio.to_thread(Runtime, opened, device, thread)
    assert (await runtime.predict(column(0.25))).matrix[0, 1] == pytest.approx(0.25)
    assert device.fallback is not None
    again = await asyncio.to_thread(Runtime, opened, device, thread)  # asks for no GPU any more: no warning
    assert (await again.predict(column(0.25))).matrix[0, 1] == pytest.approx(0.25)


async def test_a_closed_runtime_says_so(tmp_path: Path, thread: InferenceThread) -> None:
    runtime = await load(folder(tmp_path, linear()), thread)
    runtime.close()
    with pytest.raises(UsageError, match="churn@1 is closed"):
        await runtime.predict(column(0.5))


def test_onnx_runtimes_telemetry_is_off() -> None:
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"
