"""`models add`: what people have becomes a version that was loaded once, or they are told what to say or do."""

from __future__ import annotations

import functools
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression, Ridge
from threadpoolctl import threadpool_limits

from cli.adding import add, index
from core.errors import ConversionError, ManifestError, ModelError, TamperedError
from models.adding import Wishes
from models.manifest import Decision, Manifest
from models.store import ModelStore
from tests.unit.graphs import folder, forecast, linear

X, Y = load_iris(return_X_y=True)
NAMES = ("sepal_length", "sepal_width", "petal_length", "petal_width")


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(str(tmp_path / "store"))


def file(tmp_path: Path, model: onnx.ModelProto | bytes, name: str = "churn.onnx") -> Path:
    path = tmp_path / name
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return path


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    """More wait for each other on so little."""
    with threadpool_limits(1):
        yield


@functools.cache
def iris_model() -> Any:
    return LogisticRegression(max_iter=1000).fit(X, Y)


def sklearn_graph(estimator: Any, zipmap: bool = True) -> bytes:
    from skl2onnx import to_onnx

    options = None if zipmap else {id(estimator): {"zipmap": False}}
    return bytes(to_onnx(estimator, X[:1].astype(np.float32), options=options).SerializeToString())


@functools.cache
def iris_graph() -> bytes:
    return sklearn_graph(iris_model())


def said(model: onnx.ModelProto, **metadata: Any) -> onnx.ModelProto:
    helper.set_model_props(model, {name: json.dumps(value) for name, value in metadata.items()})
    return model


def manifest(store: ModelStore, name: str = "churn", version: str = "1") -> Manifest:
    return store.fetch(name, version).manifest


def test_a_bare_model_gets_a_manifest_a_golden_example_and_the_next_version(store: ModelStore, tmp_path: Path) -> None:
    source = file(tmp_path, linear(w=0.25, b=0.25, width=2))
    wishes = Wishes(fields=("value, session.mean.value",), labels=("stay", "leave"), decision="leave > 0.85")
    report = add(store, source, wishes)
    made = manifest(store)
    assert made.inputs["X"].dtype == "float32"
    assert [field.name for _, field in made.fields()] == ["value", "session.mean.value"]
    assert made.labels == ("stay", "leave")
    assert made.outputs.probabilities == "probabilities"
    assert made.thresholds.decision == Decision(label="leave", above=0.85)
    assert made.golden[0].inputs == {"value": 0.0, "session.mean.value": None}
    assert made.golden[0].expected == {"stay": 0.75, "leave": 0.25}
    assert report.lines[-1] == "Deploy it: faust -A app models promote churn 1"
    assert report.document["published"]
    assert add(store, source, wishes).document["version"] == "2"
    assert (
        add(store, source, Wishes(name="other", version="v9", fields=wishes.fields, labels=("a", "b"))).document[
            "version"
        ]
        == "v9"
    )
    assert store.models() == ["churn", "other"]
    assert dict(index(store).document["models"]) == {"churn": ["1", "2"], "other": ["v9"]}


def test_a_dry_run_shows_all_of_it_and_publishes_nothing(store: ModelStore, tmp_path: Path) -> None:
    report = add(store, file(tmp_path, forecast(1.0)), Wishes(fields=("a",), output="value"), dry_run=True)
    assert report.document["manifest"]["kind"] == "regressor"
    assert not report.document["published"]
    assert "Nothing was published" in report.lines[-1]
    assert store.models() == []


@pytest.mark.parametrize("classes", [Y, np.array(["setosa", "versicolor", "virginica"])[Y]])
def test_a_zipmap_is_taken_out_and_its_labels_are_kept(classes: Any, store: ModelStore, tmp_path: Path) -> None:
    estimator = LogisticRegression(max_iter=1000).fit(X, classes)
    add(store, file(tmp_path, sklearn_graph(estimator)), Wishes(fields=(",".join(NAMES),)))
    made = manifest(store)
    assert made.labels == tuple(map(str, estimator.classes_))
    expected = estimator.predict_proba(np.zeros((1, 4)))[0]
    assert list(made.golden[0].expected.values()) == pytest.approx(expected, abs=1e-5)


def test_without_the_onnx_package_a_zipmap_is_told_with_what_to_do(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zipped = file(tmp_path, sklearn_graph(iris_model()))
    plain = file(tmp_path, sklearn_graph(iris_model(), zipmap=False), "plain.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ManifestError, match=r"churn\.onnx: .*'zipmap': False.*or install the package onnx"):
        add(store, zipped, Wishes(fields=("a,b,c,d",)))
    with pytest.raises(ManifestError, match="its labels aren't in the graph; name them in order: --labels"):
        add(store, plain, Wishes(fields=("a,b,c,d",)))
    add(store, plain, Wishes(fields=("a,b,c,d",), labels=("x", "y", "z")))
    assert manifest(store, "plain").labels == ("x", "y", "z")


def test_a_regressor_is_known_by_its_one_value(store: ModelStore, tmp_path: Path) -> None:
    graph = sklearn_graph(Ridge().fit(X, Y))
    add(store, file(tmp_path, graph), Wishes(fields=("a,b,c,d",), decision="value>1.5"))
    made = manifest(store)
    assert (made.kind, made.outputs.value, made.labels) == ("regressor", "variable", ())
    assert made.thresholds.decision == Decision(above=1.5)


def test_fields_come_from_the_graphs_metadata_or_its_inputs_names(store: ModelStore, tmp_path: Path) -> None:
    add(store, file(tmp_path, said(linear(width=2), fields=["a", "session.count"], labels=["no", "yes"])), Wishes())
    assert [field.name for _, field in manifest(store).fields()] == ["a", "session.count"]
    assert manifest(store).labels == ("no", "yes")
    add(store, file(tmp_path, said(linear(), fields={"X": ["b"]}), "two.onnx"), Wishes(labels=("no", "yes")))
    assert [field.name for _, field in manifest(store, "two").fields()] == ["b"]
    add(store, file(tmp_path, linear(), "three.onnx"), Wishes(labels=("no", "yes")))
    assert [field.name for _, field in manifest(store, "three").fields()] == ["X"]


def two_inputs() -> onnx.ModelProto:
    """probabilities = (x, k) of a float32 input with 1 and an int64 input with 1 column."""
    nodes = [
        helper.make_node("Cast", ["k"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Concat", ["x", "f"], ["both"], axis=1),
        helper.make_node("Softmax", ["both"], ["p"], axis=1),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1]),
        helper.make_tensor_value_info("k", TensorProto.INT64, ["n", 1]),
    ]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("p", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    return model


@pytest.mark.parametrize("fields", [("a,b",), ("a", "b"), ("k=b", "x=a")])
def test_fields_are_dealt_to_several_inputs(fields: tuple[str, ...], store: ModelStore, tmp_path: Path) -> None:
    add(store, file(tmp_path, two_inputs()), Wishes(fields=fields, labels=("no", "yes")))
    made = manifest(store)
    assert {name: [f.name for f in given.fields] for name, given in made.inputs.items()} == {"x": ["a"], "k": ["b"]}
    assert made.inputs["k"].dtype == "int64"


def of_five_rows() -> onnx.ModelProto:
    model = linear()
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("X", TensorProto.FLOAT, [5, 1]))
    return model


def images() -> onnx.ModelProto:
    """One that takes pictures."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3, 8, 8]) for name in ("X", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["X"], ["y"])], "g", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    return model


def logits() -> onnx.ModelProto:
    return linear(w=3.0, b=5.0)


@pytest.mark.parametrize(
    ("make", "wishes", "says"),
    [
        (lambda: linear(width=3), Wishes(labels=("a", "b")), r"which fields fill its inputs \('X', .*--fields a,b,c"),
        (lambda: linear(width=3), Wishes(fields=("a,b",), labels=("a", "b")), "needs 3 fields, got 2"),
        (linear, Wishes(fields=("a",)), "its labels aren't in the graph"),
        (linear, Wishes(fields=("a",), labels=("a", "b", "c")), "names 3 labels"),
        (linear, Wishes(fields=("session.mode.x",), labels=("a", "b")), r"session\.variance\.FIELD"),
        (linear, Wishes(fields=("a",), labels=("a", "b"), output="odds"), r"can't be output 'odds'.*'probabilities'"),
        (linear, Wishes(fields=("a",), labels=("a", "b"), decision="c>0.5"), r"decision\.label is 'c'"),
        (linear, Wishes(fields=("a",), labels=("a", "b"), decision="more"), "write LABEL>0.85"),
        (linear, Wishes(fields=("a",), labels=("a", "b"), name="a b"), "say --name"),
        (linear, Wishes(fields=("a",), labels=("a", "b"), version="../2"), "say --version"),
        (logits, Wishes(fields=("a",), labels=("a", "b")), "probabilities are in"),
        (lambda: forecast(1.0), Wishes(fields=("a",)), "can't be told; it has .*Choose with --output"),
        (of_five_rows, Wishes(fields=("a",), labels=("a", "b")), "takes exactly 5 rows; export"),
        (images, Wishes(fields=("a",)), r"can't be filled: a model takes \(rows, col"),
        (lambda: b"not a model", Wishes(fields=("a",)), r"churn\.onnx"),
        (lambda: b"", Wishes(fields=("a",)), "empty"),
    ],
)
def test_what_is_missing_or_wrong_is_told_and_nothing_is_published(
    make: Any, wishes: Wishes, says: str, store: ModelStore, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=says):
        add(store, file(tmp_path, make()), wishes)
    assert store.models() == []


def external(tmp_path: Path, location: str) -> Path:
    model = linear(width=400)
    path = tmp_path / "big.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="weights.bin", size_threshold=100)
    if location != "weights.bin":
        model = onnx.load(str(path), load_external_data=False)
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = location
        path.write_bytes(model.SerializeToString())
    return path


def test_a_models_tensors_in_other_files_come_along_and_stay_within_its_folder(
    store: ModelStore, tmp_path: Path
) -> None:
    fields = (",".join(f"f{n}" for n in range(400)),)
    add(store, external(tmp_path, "weights.bin"), Wishes(fields=fields, labels=("a", "b")))
    assert sorted(manifest(store, "big").files) == ["model.onnx", "weights.bin"]
    for location in ("../weights.bin", "/etc/passwd", "manifest.json"):
        with pytest.raises(ManifestError, match="leaves the folder"):
            add(store, external(tmp_path, location), Wishes(fields=fields, labels=("a", "b")))
    (tmp_path / "secret").symlink_to("/etc/passwd")
    with pytest.raises(ManifestError, match="leaves the folder"):
        add(store, external(tmp_path, "secret"), Wishes(fields=fields, labels=("a", "b")))
    with pytest.raises(ManifestError, match="'gone', which isn't beside it"):
        add(store, external(tmp_path, "gone"), Wishes(fields=fields, labels=("a", "b")))


def mlflow(tmp_path: Path, flavors: str | None = None, columns: Any = NAMES) -> Path:
    """A folder as mlflow.onnx.save_model of MLflow 2 and 3 writes it."""
    path = tmp_path / "iris"
    path.mkdir(exist_ok=True)
    signature = json.dumps([{"type": "float", "name": name, "required": True} for name in columns])
    (path / "model.onnx").write_bytes(iris_graph())
    (path / "MLmodel").write_text(
        (flavors or "flavors:\n  onnx:\n    code: null\n    data: model.onnx\n    onnx_version: 1.19.0\n")
        + "  python_function:\n    data: model.onnx\n    loader_module: mlflow.onnx\n"
        + "mlflow_version: 3.4.0\nrun_id: 6f1\n"
        + f"signature:\n  inputs: '{signature}'\n  outputs: null\n  params: null\n"
    )
    (path / "requirements.txt").write_text("onnx\n")
    return path


def test_an_mlflow_folder_with_the_onnx_flavour_brings_its_fields(store: ModelStore, tmp_path: Path) -> None:
    add(store, mlflow(tmp_path), Wishes())
    made = manifest(store, "iris")
    assert [field.name for _, field in made.fields()] == list(NAMES)
    assert made.made_by == "MLflow 3.4.0, run 6f1"
    assert list(made.files) == ["model.onnx"]
    add(store, mlflow(tmp_path), Wishes(fields=("a,b,c,session.count",)))
    assert [field.name for _, field in manifest(store, "iris", "2").fields()][-1] == "session.count"


@pytest.mark.parametrize(
    ("flavors", "says"),
    [
        ("flavors:\n  sklearn:\n    pickled_model: model.pkl\n", r"convert\(mlflow\.sklearn\.load_model"),
        ("flavors:\n  pytorch:\n    model_data: data\n", r"flavors pytorch, and only onnx.*mlflow\.onnx\.log_model"),
        ("flavors:\n  onnx:\n    data: ../model.onnx\n", "which is no file in the folder"),
        ("flavors:\n  onnx:\n    data: gone.onnx\n", "which is no file in the folder"),
        ("flavors: [\n", "can't be read"),
        ("other:\n  a: 1\n", "names no flavors"),
    ],
)
def test_another_mlflow_folder_is_told_with_what_to_do(
    flavors: str, says: str, store: ModelStore, tmp_path: Path
) -> None:
    with pytest.raises(ManifestError, match=says):
        add(store, mlflow(tmp_path, flavors), Wishes())


def test_a_finished_folder_is_published_as_it_is_once_it_computes(store: ModelStore, tmp_path: Path) -> None:
    made = folder(tmp_path / "made", linear(w=0.5), golden=[{"inputs": {"value": 1}, "expected": {"leave": 0.5}}])
    before = (made / "manifest.json").read_bytes()
    assert add(store, made, Wishes()).document["version"] == "1"
    assert (store.fetch("churn", "1").path / "manifest.json").read_bytes() == before
    with pytest.raises(ModelError, match="change that file instead"):
        add(store, made, Wishes(fields=("a",)))
    with pytest.raises(ModelError, match=r"--version is 3, but 1/manifest\.json says 1"):
        add(store, made, Wishes(version="3"))
    wrong = folder(tmp_path / "wrong", linear(), version="2", outputs={"probabilities": "odds"})
    with pytest.raises(ManifestError, match="no output 'odds'"):
        add(store, wrong, Wishes())
    (made / "model.onnx").write_bytes(b"other")
    with pytest.raises(TamperedError):
        add(store, made, Wishes())
    assert store.versions("churn") == ["1"]


@pytest.mark.parametrize("name", ["nothing", "empty", "notes.txt", "two"])
def test_what_holds_no_model_is_told_with_what_can_be_added(name: str, store: ModelStore, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("a model")
    (tmp_path / "two").mkdir()
    for each in ("a.onnx", "b.onnx"):
        file(tmp_path / "two", linear(), each)
    with pytest.raises(ModelError, match=r"there is no|has no model|another ending|several models"):
        add(store, tmp_path / name, Wishes())


class Harmful:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path(self.path),))

    path = ""


def test_a_pickle_is_loaded_only_by_those_who_say_that_they_trust_it(store: ModelStore, tmp_path: Path) -> None:
    harmful = Harmful()
    harmful.path = str(tmp_path / "harm")
    source = file(tmp_path, pickle.dumps(harmful), "iris.pkl")
    with pytest.raises(ModelError, match="loading it runs whatever code is in it: say --trust-pickle"):
        add(store, source, Wishes(fields=("a",)))
    assert not (tmp_path / "harm").exists()
    source.write_bytes(pickle.dumps(iris_model()))
    add(store, source, Wishes(fields=("a,b,c,d",), labels=("x", "y", "z"), trust_pickle=True))
    made = manifest(store, "iris")
    assert made.labels == ("x", "y", "z")
    assert len(made.golden) == 8
    source.write_bytes(b"no pickle")
    with pytest.raises(ConversionError, match=r"iris\.pkl can't be unpickled"):
        add(store, source, Wishes(fields=("a",), trust_pickle=True))
