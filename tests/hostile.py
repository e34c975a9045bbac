"""What a hostile model does once it is loaded or run, put into any honest one with an output `probabilities`."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

X86: Final = platform.machine() in ("x86_64", "AMD64")
"""Whether `crashing` does: other processors divide."""


def swallowing(model: onnx.ModelProto, size: int = 10_000_000_000) -> onnx.ModelProto:
    """It declares a tensor of that many bytes in a few bytes of its own."""
    nodes = [
        helper.make_node("ConstantOfShape", ["SHAPE"], ["swallowed"]),
        helper.make_node("ReduceMax", ["swallowed"], ["burden"], keepdims=0),
    ]
    return _burdened(model, nodes, {"SHAPE": np.array([size // 4], np.int64)})


def hollow(model: onnx.ModelProto) -> onnx.ModelProto:
    """One of its tensors says that it has 10 GB, and has nothing."""
    made = _burdened(model, [helper.make_node("Gather", ["HOLLOW", "FIRST"], ["burden"])], {"FIRST": np.array(0)})
    made.graph.initializer.add(name="HOLLOW", data_type=TensorProto.FLOAT, dims=[2_500_000_000])
    return made


def crashing(model: onnx.ModelProto) -> onnx.ModelProto:
    """It divides -2 ** 63 by -1, which ends whoever runs it by SIGFPE: x86 can't, and ONNX Runtime 1.32 doesn't ask."""
    nodes = [
        helper.make_node("Div", ["LEAST", "MINUS"], ["quotient"]),
        helper.make_node("Cast", ["quotient"], ["burden"], to=TensorProto.FLOAT),
    ]
    return _burdened(model, nodes, {"LEAST": np.array(-(2**63), np.int64), "MINUS": np.array(-1, np.int64)})


def endless(model: onnx.ModelProto) -> onnx.ModelProto:
    """It counts to 2 ** 62 before it answers."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["more"], ["more on"]), helper.make_node("Add", ["v", "v"], ["v on"])],
        "count",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("more", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("more on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v on", TensorProto.FLOAT, []),
        ],
    )
    nodes = [helper.make_node("Loop", ["TIMES", "TRUE", "ZERO"], ["burden"], body=body)]
    constants = {"TIMES": np.array(2**62, np.int64), "TRUE": np.array(True), "ZERO": np.array(0, np.float32)}
    return _burdened(model, nodes, constants)


def _burdened(
    model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], constants: dict[str, np.ndarray[Any, Any]]
) -> onnx.ModelProto:
    """The same answers, plus `burden`, which the nodes compute."""
    burdened = onnx.ModelProto()
    burdened.CopyFrom(model)
    for node in burdened.graph.node:
        for names in (node.input, node.output):
            names[:] = ["honest" if name == "probabilities" else name for name in names]
    burdened.graph.node.extend([*nodes, helper.make_node("Add", ["honest", "burden"], ["probabilities"])])
    burdened.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return burdened
