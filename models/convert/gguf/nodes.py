"""Nodes and constants of a graph in the making."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from models.engine import Array


class Nodes:
    """Each node is named by its first output."""

    def __init__(self, floats: DTypeLike) -> None:
        """floats: what constants of float32 are kept in."""
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.inputs: list[Any] = []
        """Those that have a default."""
        self._floats = floats

    def constant(self, name: str, array: Array) -> str:
        from onnx import numpy_helper

        kept = array.astype(self._floats) if array.dtype == np.float32 else array
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(kept), name))
        return name

    def given(self, name: str, default: Array, shape: Sequence[str | int]) -> str:
        """An input that needn't be bound."""
        from onnx import helper

        self.constant(name, default)
        self.inputs.append(helper.make_tensor_value_info(name, self.initializers[-1].data_type, shape))
        return name

    def add(self, op: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "", **attributes: Any) -> str:
        from onnx import helper

        name = next(output for output in outputs if output)
        self.nodes.append(helper.make_node(op, inputs, outputs, name=name, domain=domain, **attributes))
        return name
