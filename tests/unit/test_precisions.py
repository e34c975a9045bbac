"""Several precisions of one model: made and measured here, chosen by whoever deploys, and proved like any version."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.adding import add, precise
from core.errors import (
    ConversionError,
    GoldenMismatchError,
    ManifestError,
    ModelError,
    RequestRefusedError,
    TamperedError,
)
from core.events import Action, Canary, Deployment
from models.adding import Wishes
from models.convert import add_precisions
from models.convert.precisions import read_rows
from models.device import Device
from models.folder import ModelFolder
from models.golden import Example, matrices
from models.inference import InferenceThread
from models.live import LiveModels
from models.manifest import Manifest
from models.precision import Precision, chosen
from models.runtime import Runtime
from models.store import ModelStore
from models.verifier import Verifier
from tables.deployments import judge
from tests.unit.graphs import folder, forecast, linear, network, seal

FIELDS = ("a", "b", "c", "d")
ROWS: list[Example] = [
    dict(zip(FIELDS, map(float, row), strict=True)) for row in np.random.default_rng(1).normal(size=(200, 4))
]


def exact(root: Path, **said: Any) -> ModelFolder:
    path = folder(root, network(), inputs={"X": {"fields": list(FIELDS)}}, **said)
    return ModelFolder.open(path, path.parent.name, path.name)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """A version in fp32, fp16 and int8."""
    golden = [{"inputs": ROWS[0], "expected": {"leave": 0.0}}]
    first = exact(tmp_path_factory.mktemp("store"))
    with_golden = json.loads((first.path / "manifest.json").read_text()) | {"golden": golden}
    score = float(scores(first, "fp32", ROWS[:1])[0, 1])
    with_golden["golden"][0]["expected"]["leave"] = score
    (first.path / "manifest.json").write_text(json.dumps(with_golden))
    return add_precisions(ModelFolder.open(first.path, "churn", "1"), ["fp16", "int8"], ROWS)


def scores(version: ModelFolder, precision: str, rows: list[Example]) -> Any:
    runtime = Runtime(version, Device.of("cpu"), InferenceThread(), precision=precision)
    return runtime.compute(matrices(version.manifest, rows))["probabilities"]


@pytest.mark.parametrize("name", ["fp16", "int8"])
def test_a_precision_computes_within_the_error_that_was_measured(made: ModelFolder, name: str) -> None:
    said = made.manifest.precisions[name]
    apart = np.abs(scores(made, name, ROWS) - scores(made, "fp32", ROWS)).max()
    assert said.max_error == pytest.approx(float(apart), abs=1e-6)
    assert 0 < said.max_error < 0.1
    assert said.rows == len(ROWS) + 1, "the golden example is among them"
    assert said.latency is not None
    assert said.bytes == (made.path / said.file).stat().st_size
    assert made.model(name) == made.path / f"model.{name}.onnx"
    assert made.key(name) != made.key() == made.sha256
    assert made.manifest.files.keys() == {"model.onnx", "model.fp16.onnx", "model.int8.onnx"}


def test_fp16_has_half_the_weights_and_int8_a_quarter_of_the_largest(tmp_path: Path) -> None:
    fields = [f"f{number}" for number in range(64)]
    wide = folder(tmp_path, network(width=64, hidden=512), inputs={"X": {"fields": fields}})
    rows: list[Example] = [dict.fromkeys(fields, number / 100) for number in range(100)]
    offered = add_precisions(ModelFolder.open(wide, "churn", "1"), ["fp16", "int8"], rows).manifest.offered
    sizes = {name: one.bytes or 0 for name, one in offered.items()}
    assert sizes["fp16"] < 0.6 * sizes["fp32"]
    assert sizes["int8"] < 0.4 * sizes["fp32"]


def test_an_answer_of_int8_does_not_depend_on_what_else_is_in_the_batch(made: ModelFolder) -> None:
    together = scores(made, "int8", ROWS)
    extreme: Example = dict.fromkeys(FIELDS, 1e4)
    beside = scores(made, "int8", [ROWS[7], extreme])
    assert beside[0] == pytest.approx(together[7], abs=1e-7)


def test_what_can_not_be_made_is_told_and_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    plain = exact(tmp_path)
    before = {file.name: file.read_bytes() for file in plain.path.iterdir()}
    refuse = partial(pytest.raises, ConversionError)
    with refuse(match="no way to int4; there is one to fp16, int8"):
        add_precisions(plain, ["int4"], ROWS)
    with refuse(match="int8 needs 64 rows or more.*there are 3: give them with --rows"):
        add_precisions(plain, ["fp16", "int8"], ROWS[:3])
    with refuse(match="no golden example, and there are no rows"):
        add_precisions(plain, ["fp16"])
    with refuse(match="a row has no usable value"):
        add_precisions(plain, ["fp16"], [{"a": 1.0}])
    said: dict[str, Any] = {"kind": "regressor", "labels": [], "outputs": {"value": "value"}}
    copy = folder(tmp_path / "other", forecast(1.0), **said)
    rows = [{"value": float(value)} for value in range(100)]
    with refuse(match=r"gain nothing from int8: of its operators \(.*Identity.*\) none has weights"):
        add_precisions(ModelFolder.open(copy, "churn", "1"), ["int8"], rows)
    assert {file.name: file.read_bytes() for file in plain.path.iterdir()} == before
    assert [path.name for path in plain.path.parent.iterdir()] == ["1"]


def test_a_precision_that_computes_nonsense_is_not_kept(tmp_path: Path) -> None:
    far = folder(tmp_path, linear(w=1e-9, b=0.5), inputs={"X": {"fields": ["value"]}})
    rows = [{"value": float(value)} for value in np.linspace(0, 4e8, 100)]
    with pytest.raises(ConversionError, match="churn@1 in fp16 "):
        add_precisions(ModelFolder.open(far, "churn", "1"), ["fp16"], rows)
    assert not (far / "model.fp16.onnx").exists()


def test_a_regressors_error_is_in_its_values_own_unit(tmp_path: Path) -> None:
    said: dict[str, Any] = {"kind": "regressor", "labels": [], "outputs": {"value": "value"}}
    path = folder(tmp_path, forecast(1.0), **said)
    made = add_precisions(ModelFolder.open(path, "churn", "1"), ["fp16"], [{"value": 1000.3}, {"value": 7.0}])
    assert made.manifest.precisions["fp16"].max_error == pytest.approx(
        abs(float(np.float16(1000.3)) - 1000.3), abs=1e-3
    )


@pytest.mark.parametrize(
    ("precisions", "told"),
    [
        ({"fp16": {"file": "other.onnx"}}, "'other.onnx', which files doesn't name"),
        ({"fp16": {"file": "model.onnx"}}, "model.onnx is fp32, and nothing else is"),
        ({"fp32": {"file": "extra.onnx"}}, "model.onnx is fp32, and nothing else is"),
        ({"a": {"file": "extra.onnx"}, "b": {"file": "extra.onnx"}}, "two precisions have the same file"),
        ({"FP 16": {"file": "extra.onnx"}}, "should match pattern"),
        ({"fp16": {"file": "extra.onnx", "max_error": -1}}, "greater than or equal to 0"),
    ],
)
def test_precisions_that_can_not_be_are_refused_by_the_manifest(
    precisions: dict[str, Any], told: str, tmp_path: Path
) -> None:
    path = folder(tmp_path, linear())
    (path / "extra.onnx").write_bytes(linear().SerializeToString())
    raw = json.loads((path / "manifest.json").read_text())
    del raw["files"]
    seal(path, raw | {"precisions": precisions})
    with pytest.raises(ManifestError, match=told):
        ModelFolder.open(path, "churn", "1")


def test_a_precisions_file_reads_nothing_that_is_not_listed(tmp_path: Path) -> None:
    path = folder(tmp_path, network(), inputs={"X": {"fields": list(FIELDS)}})
    raw = json.loads((path / "manifest.json").read_text())
    for outside, told in (("../../../secret", "leaves the folder"), ("weights.bin", "doesn't list")):
        (path / "model.fp16.onnx").write_bytes(network(file=outside).SerializeToString())
        del raw["files"]
        seal(path, raw | {"precisions": {"fp16": {"file": "model.fp16.onnx"}}})
        raw = json.loads((path / "manifest.json").read_text())
        with pytest.raises(TamperedError, match=f"model.fp16.onnx reads '{outside}', which .*{told}"):
            ModelFolder.open(path, "churn", "1")


OFFERED = {
    "fp32": Precision(file="model.onnx", latency=0.004),
    "fp16": Precision(file="h", max_error=0.001, latency=0.002),
    "int8": Precision(file="q", max_error=0.02, latency=0.001),
    "odd": Precision(file="o", max_error=0.01),
}


@pytest.mark.parametrize(
    ("max_error", "max_latency", "expected"),
    [
        (0.0, None, "fp32"),
        (0.005, None, "fp16"),
        (0.5, None, "int8"),
        (None, 0.003, "fp16"),
        (None, 0.001, "int8"),
        (None, 1.0, "fp32"),
        (0.005, 0.003, "fp16"),
    ],
)
def test_a_constraint_means_the_quickest_within_an_error_and_the_most_exact_within_a_latency(
    max_error: float | None, max_latency: float | None, expected: str
) -> None:
    assert chosen(OFFERED, "churn@1", max_error, max_latency) == expected


def test_a_constraint_that_nothing_meets_says_what_there_is() -> None:
    told = (
        r"churn@1 has no precision with an error of at most 0.001 and at most 1 ms; it has fp32 \(error 0, 4 ms\), fp16"
    )
    with pytest.raises(ModelError, match=told):
        chosen(OFFERED, "churn@1", 0.001, 0.001)
    with pytest.raises(ModelError, match=r"at most 1e\+09 ms; it has fp32 \(error 0\)"):
        chosen({"fp32": Precision(file="model.onnx")}, "churn@1", None, 1e6)


def ask(now: Deployment | None, **action: Any) -> Deployment:
    return judge("churn", Action(**action), now, ["1", "2", "3"], 7, lambda version: OFFERED)


def test_a_deployment_remembers_in_which_precision_each_of_its_versions_computes() -> None:
    one = ask(None, active="1", precision="int8")
    assert (one.precision, one.loads) == ({"1": "int8"}, (("1", "int8"),))
    tried = ask(one, action="canary", version="2", share=0.1, max_error=0.005)
    assert tried.loads == (("1", "int8"), ("2", "fp16"))
    grown = ask(tried, action="canary", share=0.5)
    assert grown.precision == tried.precision, "who names none keeps what there is"
    promoted = ask(grown, action="promote")
    assert (promoted.active, promoted.precision) == ("2", {"1": "int8", "2": "fp16"})
    assert ask(promoted, action="rollback").loads == (("1", "int8"),)
    assert ask(promoted, active="2", precision="fp32").loads == (("2", "fp32"),)
    shadowed = ask(promoted, action="shadow", version="3", precision="int8")
    assert shadowed.precision_of("3") == "int8"
    assert ask(shadowed, action="unload", version="3").precision == promoted.precision
    later = ask(ask(promoted, active="3"), active="1", precision="fp32")
    assert later.precision == {}, "what was deployed long ago is forgotten"


@pytest.mark.parametrize(
    ("match", "action"),
    [
        (r"churn@1 has no precision 'fp8'; it has fp32 \(error 0, 4 ms\), fp16", {"active": "1", "precision": "fp8"}),
        ("no precision with an error of at most 0 and", {"active": "1", "max_error": 0, "max_latency": 0.0001}),
        ("freeze takes no precision: deploy, promote", {"action": "freeze", "precision": "fp16"}),
    ],
)
def test_a_precision_that_is_not_there_is_refused_with_those_that_are(match: str, action: dict[str, Any]) -> None:
    with pytest.raises(RequestRefusedError, match=match):
        ask(ask(None, active="1"), **action)


def test_a_request_names_a_precision_or_a_constraint() -> None:
    with pytest.raises(ValueError, match="not both"):
        Action(active="1", precision="fp16", max_error=0.1)


@pytest.fixture
async def live(made: ModelFolder) -> AsyncIterator[LiveModels]:
    thread, verifier = InferenceThread(), Verifier("cpu")
    models = LiveModels(ModelStore(str(made.path.parents[1])), Device.of("cpu"), thread, verifier=verifier)
    yield models
    models.close()
    await verifier.close()
    await thread.close()


async def test_one_version_goes_from_one_precision_to_another_while_it_answers(
    live: LiveModels, made: ModelFolder
) -> None:
    rows = matrices(made.manifest, ROWS[:5])
    seen: dict[str, tuple[str, Any]] = {}
    for revision, precision in enumerate(({}, {"1": "int8"}, {"1": "fp16"}), 1):
        await live.converge(Deployment(model="churn", revision=revision, active="1", precision=precision, since=0))
        with live.using("churn") as version:
            name = precision.get("1", "fp32")
            assert live.status()["churn"].get("precision", "fp32") == name == version.precision
            assert live.status()["churn"]["sha256"] == made.sha256
            seen[name] = (version.identity, (await version.predict(rows)).matrix)
    assert len({identity for identity, _ in seen.values()}) == 3
    for name in ("fp16", "int8"):
        apart = np.abs(seen[name][1] - seen["fp32"][1]).max()
        assert 0 < apart <= made.manifest.precisions[name].max_error + 1e-6
    with pytest.raises(ModelError, match="churn@1 has no precision 'int4'; it has fp32"):
        await live.converge(Deployment(model="churn", revision=9, active="1", precision={"1": "int4"}, since=0))
    assert live.status()["churn"]["precision"] == "fp16"


async def test_a_precision_that_is_less_exact_than_it_says_does_not_go_live(made: ModelFolder, tmp_path: Path) -> None:
    path = tmp_path / "churn" / "1"
    shutil.copytree(made.path, path)
    raw = json.loads((path / "manifest.json").read_text())
    (path / "model.int8.onnx").write_bytes(network(seed=5).SerializeToString())
    del raw["files"]
    seal(path, raw)
    models = LiveModels(ModelStore(str(tmp_path)), Device.of("cpu"), InferenceThread())
    with pytest.raises(GoldenMismatchError, match=r"churn@1: golden\[0\]"):
        await models.verify("churn", "1", "int8")
    await models.verify("churn", "1", "fp16")


async def test_a_canary_may_compute_in_another_precision_than_the_active_version(
    live: LiveModels, made: ModelFolder
) -> None:
    second = made.path.parent / "2"
    shutil.copytree(made.path, second, dirs_exist_ok=True)
    manifest = Manifest.read(second / "manifest.json", "churn@2").model_copy(update={"version": "2"})
    manifest.write(second)
    await live.converge(
        Deployment(
            model="churn",
            revision=1,
            active="1",
            canary=Canary(version="2", share=0.5),
            precision={"2": "int8"},
            since=0,
        )
    )
    shown = live.status()["churn"]
    assert (shown.get("precision"), shown["canary"]["precision"]) == (None, "int8")


def test_models_add_makes_precisions_and_a_published_folder_stays_as_it_is(tmp_path: Path) -> None:
    store, rows = ModelStore(str(tmp_path / "store")), tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n")
    plain = exact(tmp_path / "mine")
    report = add(store, plain.path, Wishes(), precisions=("fp16", "int8"), rows=rows)
    assert report.document["manifest"]["precisions"].keys() == {"fp32", "fp16", "int8"}
    assert any(line.startswith("int8") and "200" in line for line in report.lines)
    assert sorted(file.name for file in plain.path.iterdir()) == ["manifest.json", "model.onnx"]
    published = store.fetch("churn", "1")
    assert published.manifest.precisions["fp16"].rows == 200
    with pytest.raises(ModelError, match="in the model store, where a version never changes"):
        precise(store, published.path, ("fp16",), rows)
    here = precise(store, plain.path, (), rows)
    assert here.document["precisions"].keys() == {"fp32", "fp16", "int8"}
    assert ModelFolder.open(plain.path, "churn", "1").manifest.precisions.keys() == {"fp32", "fp16", "int8"}


@pytest.mark.parametrize(
    ("text", "told"),
    [('{"a": 1}\nnope', "line 2: no JSON"), ("[1]", "line 1: write an object"), (None, "can't be read")],
)
def test_rows_that_can_not_be_read_are_named_by_their_line(text: str | None, told: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "rows").write_text(text)
    with pytest.raises(ManifestError, match=told):
        read_rows(tmp_path / "rows")
