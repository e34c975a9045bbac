"""Element types of ONNX inputs: what an event's field must be to fill one, and what is too large for it."""

from __future__ import annotations

import math
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Dtype(StrEnum):
    """Element types of ONNX inputs that fields can fill."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    STRING = "string"
    BOOL = "bool"

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """Of the matrix that the runtime takes; strings travel as objects."""
        return np.dtype(object) if self is Dtype.STRING else np.dtype(self.value)

    @property
    def onnx(self) -> str:
        """As ONNX Runtime names a tensor of it."""
        names = {Dtype.FLOAT32: "float", Dtype.FLOAT64: "double"}
        return f"tensor({names.get(self, self.value)})"

    @cached_property
    def floating(self) -> bool:
        """Whether it holds fractions."""
        return self.numpy.kind == "f"

    @property
    def whole(self) -> bool:
        """Whether it holds whole numbers alone."""
        return self.numpy.kind in "iu"

    @property
    def wanted(self) -> str:
        """What a producer must send for it."""
        if self is Dtype.STRING:
            return "a text"
        if self is Dtype.BOOL:
            return "true or false"
        if self.whole:
            limits = np.iinfo(self.numpy)
            return f"a whole number from {limits.min} to {limits.max}"
        return f"a number from {-self._largest:g} to {self._largest:g}"

    @cached_property
    def _largest(self) -> float:
        return float(np.finfo(self.numpy).max)

    def within(self, values: Floats) -> NDArray[np.bool_]:
        """Which numbers are in its range, whole or not; NaN never is. Not for strings."""
        if self.floating:
            inside: NDArray[np.bool_] = np.abs(values) <= self._largest
            return inside
        low, beyond = (0, 2) if self is Dtype.BOOL else (np.iinfo(self.numpy).min, np.iinfo(self.numpy).max + 1)
        return (float(low) <= values) & (values < float(beyond))  # `beyond` is a power of two: exact as a float

    def accepts(self, value: object) -> bool:
        """Whether a manifest may give this value for a field of this type."""
        if self is Dtype.STRING:
            return isinstance(value, str)
        if self is Dtype.BOOL:
            return isinstance(value, bool)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        if not math.isfinite(value):
            return self.floating
        return bool(self.within(np.array([value], np.float64)).all()) and (self.floating or float(value).is_integer())
