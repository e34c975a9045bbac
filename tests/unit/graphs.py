"""Small ONNX models whose answers one can work out in one's head, and the folders that they live in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.folder import hashes


def linear(w: float = 1.0, b: float = 0.0, width: int = 1, element: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """probabilities (n, 2) = (1 - p, p), p = w * first column + b: of no use, but easy to check."""
    weights = np.zeros((width, 1), np.float32)
    weights[0] = w
    nodes = [
        helper.make_node("Cast", ["X"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["f", "W"], ["m"]),
        helper.make_node("Add", ["m", "B"], ["p"]),
        helper.make_node("Sub", ["ONE", "p"], ["q"]),
        helper.make_node("Concat", ["q", "p"], ["probabilities"], axis=1),
        helper.make_node("ArgMax", ["probabilities"], ["label"], axis=1, keepdims=0),
    ]
    constants = {"W": weights, "B": np.array([b], np.float32), "ONE": np.array([1.0], np.float32)}
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]),
        helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", 2]),
    ]
    return _model(nodes, [helper.make_tensor_value_info("X", element, ["n", width])], outputs, constants)


def lookup(table: list[list[float]]) -> onnx.ModelProto:
    """probabilities = the table's row that an int64 field names; a run fails when one of its rows names none."""
    nodes = [
        helper.make_node("Gather", ["T", "X"], ["g"], axis=0),
        helper.make_node("Squeeze", ["g", "AXIS"], ["probabilities"]),
    ]
    constants = {"T": np.array(table, np.float32), "AXIS": np.array([1], np.int64)}
    outputs = [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", len(table[0])])]
    return _model(nodes, [helper.make_tensor_value_info("X", TensorProto.INT64, ["n", 1])], outputs, constants)


def forecast(half_width: float) -> onnx.ModelProto:
    """A regressor: value = the first column, interval = value -/+ half_width."""
    nodes = [
        helper.make_node("Identity", ["X"], ["value"]),
        helper.make_node("Sub", ["X", "H"], ["low"]),
        helper.make_node("Add", ["X", "H"], ["high"]),
        helper.make_node("Concat", ["low", "high"], ["interval"], axis=1),
    ]
    outputs = [
        helper.make_tensor_value_info("value", TensorProto.FLOAT, ["n", 1]),
        helper.make_tensor_value_info("interval", TensorProto.FLOAT, ["n", 2]),
    ]
    constants = {"H": np.array([half_width], np.float32)}
    return _model(nodes, [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["n", 1])], outputs, constants)


def network(width: int = 4, hidden: int = 32, seed: int = 0, file: str | None = None) -> onnx.ModelProto:
    """probabilities (n, 2) of a network with one hidden layer and weights by chance. file: where its first weights are
    said to be kept, as external data."""
    rng = np.random.default_rng(seed)
    first = rng.normal(size=(width, hidden)).astype(np.float32)
    nodes = [
        helper.make_node("Gemm", ["X", "W1", "B1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "W2"], ["l"]),
        helper.make_node("Softmax", ["l"], ["probabilities"], axis=1),
    ]
    constants = {
        "W1": first,
        "B1": rng.normal(size=hidden).astype(np.float32),
        "W2": rng.normal(size=(hidden, 2)).astype(np.float32) / np.float32(hidden**0.5),
    }
    outputs = [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", 2])]
    made = _model(nodes, [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["n", width])], outputs, constants)
    if file is not None:
        weights = made.graph.initializer[0]
        weights.ClearField("raw_data")
        weights.data_location = TensorProto.EXTERNAL
        weights.external_data.add(key="location", value=file)
    return made


def manifest(name: str = "churn", version: str = "1", **changes: Any) -> dict[str, Any]:
    """manifest.json of a linear model, as a person writes it, without its files."""
    return {
        "name": name,
        "version": version,
        "inputs": {"X": {"dtype": "float32", "fields": ["value"]}},
        "outputs": {"probabilities": "probabilities"},
        "labels": ["stay", "leave"],
        **changes,
    }


def folder(root: Path, model: onnx.ModelProto | bytes, **manifest_fields: Any) -> Path:
    """Writes root/NAME/VERSION/ with the model and a manifest that lists whatever files lie there."""
    said = manifest(**manifest_fields)
    path = root / str(said["name"]) / str(said["version"])
    path.mkdir(parents=True, exist_ok=True)
    (path / "model.onnx").write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    seal(path, said)
    return path


def seal(path: Path, said: dict[str, Any]) -> None:
    """Writes the manifest with the hashes of the folder's files as they are now."""
    (path / "manifest.json").write_text(json.dumps({"files": hashes(path), **said}))


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: dict[str, Any],
) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    return model
