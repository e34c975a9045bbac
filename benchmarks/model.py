"""The model that every side runs: an MLP 16-64-64-2 with random, fixed weights, as a version in a store."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.load import FIELDS
from models.dtype import Dtype
from models.manifest import MODEL, Input, InputField, Manifest, Outputs

NAME: Final = "mlp"
VERSION: Final = "1"
LABELS: Final = ("stays", "leaves")
INPUT: Final = "features"
OUTPUT: Final = "probabilities"
WIDTHS: Final = (2 * len(FIELDS), 64, 64, len(LABELS))


def build(store: Path, version: str = VERSION) -> Path:
    """Writes the model folder `mlp/VERSION` into a store: 8 raw features and their 8 session means into two labels.

    Returns the ONNX file, which stock Faust loads without the rest.
    """
    folder = store / NAME / version
    folder.mkdir(parents=True)
    path = folder / MODEL
    path.write_bytes(_mlp().SerializeToString())
    fields = [*FIELDS, *(f"session.mean.{name}" for name in FIELDS)]
    Manifest(
        name=NAME,
        version=version,
        inputs={INPUT: Input(dtype=Dtype.FLOAT32, fields=tuple(InputField(name=name) for name in fields))},
        outputs=Outputs(probabilities=OUTPUT),
        labels=LABELS,
        files={path.name: hashlib.sha256(path.read_bytes()).hexdigest()},
        licence="Apache-2.0",
        made_by="benchmarks/model.py: random weights, seed 0",
    ).write(folder)
    return path


def _mlp() -> onnx.ModelProto:
    draw = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[TensorProto] = []
    x = INPUT
    layers = list(itertools.pairwise(WIDTHS))
    for n, (wide, out) in enumerate(layers):
        scale = np.sqrt(2 / wide)
        weights.append(numpy_helper.from_array((draw.standard_normal((wide, out)) * scale).astype(np.float32), f"w{n}"))
        weights.append(numpy_helper.from_array(np.zeros(out, np.float32), f"b{n}"))
        nodes.append(helper.make_node("Gemm", [x, f"w{n}", f"b{n}"], [f"z{n}"]))
        last = n == len(layers) - 1
        x = OUTPUT if last else f"a{n}"
        nodes.append(
            helper.make_node("Softmax", [f"z{n}"], [x], axis=1) if last else helper.make_node("Relu", [f"z{n}"], [x])
        )
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["n", WIDTHS[0]])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["n", WIDTHS[-1]])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
