"""Sessions that are asked through bound buffers, as on a GPU: the same answers as when they are asked plainly."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto

from models.binding import Binding
from models.buffers import SMALLEST, Buffers, Bytes
from models.device import Device
from models.dtype import Dtype
from models.folder import ModelFolder
from models.inference import InferenceThread
from models.runtime import Runtime
from models.session import opened
from tests.unit.graphs import folder, forecast, linear, lookup

CPU = Device.of("cpu")


@pytest.fixture
async def thread() -> AsyncIterator[InferenceThread]:
    running = InferenceThread()
    yield running
    await running.close()


def session_of(model: onnx.ModelProto, root: Path) -> Any:
    path = root / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return opened(path, CPU, "tally@1")


def bound() -> Device:
    """The CPU, asked as an accelerator is."""
    return Device("cpu", bound=True)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Binding]:
    """A session with two outputs of different widths, and a binding that is used again and again."""
    session = session_of(forecast(1.5), tmp_path_factory.mktemp("model"))
    return session, Binding(session, ["value", "interval"])


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=6), seed=st.integers(0, 2**32 - 1))
def test_batches_of_any_size_in_any_order_give_what_a_plain_run_gives(
    three: tuple[Any, Binding], sizes: list[int], seed: int
) -> None:
    session, binding = three
    rng = np.random.default_rng(seed)
    given_out: list[tuple[NDArray[Any], NDArray[Any]]] = []
    for rows in sizes:
        inputs = {"X": rng.normal(size=(rows, 1)).astype(np.float32)}
        plain = session.run(["value", "interval"], inputs)
        ours = binding.run(inputs, rows)
        for name, expected in zip(("value", "interval"), plain, strict=True):
            assert ours[name].dtype == expected.dtype
            assert np.array_equal(ours[name], expected)
            given_out.append((ours[name], expected))
    for array, expected in given_out:
        assert np.array_equal(array, expected), "a later run wrote into what an earlier one had given away"


@pytest.mark.parametrize("dtype", [dtype for dtype in Dtype if dtype is not Dtype.STRING])
async def test_an_input_of_any_type_that_can_be_bound_is(dtype: Dtype, tmp_path: Path, thread: InferenceThread) -> None:
    element = onnx.helper.np_dtype_to_tensor_dtype(dtype.numpy)
    path = folder(tmp_path, linear(element=element), inputs={"X": {"dtype": dtype, "fields": ["value"]}})
    runtime = Runtime(ModelFolder.open(path, "churn", "1"), bound(), thread)
    rows = np.array([[1], [0], [1]], dtype.numpy)
    assert (await runtime.predict({"X": rows})).matrix.tolist() == [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]


async def test_texts_are_asked_plainly(tmp_path: Path, thread: InferenceThread) -> None:
    inputs = {"X": {"dtype": "string", "fields": [{"name": "value", "default": "0.75"}]}}
    path = folder(tmp_path, linear(element=TensorProto.STRING), inputs=inputs)
    runtime = Runtime(ModelFolder.open(path, "churn", "1"), bound(), thread)
    assert (await runtime.predict({"X": np.array([["0.5"]], object)})).matrix[0, 1] == pytest.approx(0.5)


async def test_a_view_that_is_not_contiguous_is_read_as_it_looks(tmp_path: Path, thread: InferenceThread) -> None:
    path = folder(tmp_path, linear(width=2), inputs={"X": {"fields": ["a", "b"]}})
    runtime = Runtime(ModelFolder.open(path, "churn", "1"), bound(), thread)
    rows = np.array([[0.1, 9], [9, 9], [0.3, 9], [9, 9]], np.float32)[::2]
    assert (await runtime.predict({"X": rows})).matrix[:, 1] == pytest.approx([0.1, 0.3])


async def test_rows_that_fail_cost_themselves_alone_and_the_next_are_answered(
    tmp_path: Path, thread: InferenceThread
) -> None:
    said = {"inputs": {"X": {"dtype": "int64", "fields": ["value"]}}}
    path = folder(tmp_path, lookup([[0.5, 0.5], [0.1, 0.9]]), **said)
    runtime = Runtime(ModelFolder.open(path, "churn", "1"), bound(), thread)
    with pytest.raises(Exception, match="indices element out of data bounds"):
        await runtime.run({"X": np.array([[7]])})
    assert (await runtime.predict({"X": np.array([[1], [0]])})).matrix[:, 1] == pytest.approx([0.9, 0.5])


def test_two_threads_at_once_get_their_own_answers(tmp_path: Path) -> None:
    path = folder(tmp_path, linear(w=1.0))
    runtime = Runtime(ModelFolder.open(path, "churn", "1"), bound(), InferenceThread())
    wrong: list[float] = []

    def ask(value: float) -> None:
        rows = np.full((64, 1), value, np.float32)
        for _ in range(200):
            found = runtime.compute({"X": rows})["probabilities"][:, 1]
            wrong.extend(found[found != np.float32(value)].tolist())

    threads = [threading.Thread(target=ask, args=(value,)) for value in (0.25, 0.5, 0.75)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert wrong == []
    assert len(runtime._bindings) <= len(threads)


def test_buffers_are_used_again_and_grow_by_powers_of_two() -> None:
    made: list[int] = []

    def pin(size: int) -> Bytes:
        made.append(size)
        return np.empty(size, np.uint8)

    buffers = Buffers(pin)
    first = buffers.array("in", (10, 2), np.float32)
    assert buffers.array("in", (5, 2), np.float32).ctypes.data == first.ctypes.data
    assert buffers.array("in", (3000, 2), np.float32).nbytes == 24_000
    assert buffers.array("other", (0, 2), np.float32).shape == (0, 2)
    assert made == [SMALLEST, 32_768, SMALLEST]
    assert buffers.pinned


def test_memory_that_can_not_be_pinned_is_told() -> None:
    buffers = Buffers(lambda size: None)
    buffers.array("in", (1, 1), np.float32)
    assert not buffers.pinned
