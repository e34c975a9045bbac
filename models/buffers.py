"""Memory of this machine that arrays go through on their way to a device and back, used again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.engine import Array

SMALLEST: Final = 4096
Bytes = NDArray[np.uint8]
Pin = Callable[[int], Bytes | None]
"""Bytes -> so much pinned memory, or None where there is none."""


class Buffers:
    """One buffer a name. They grow to the largest array that was asked for, by powers of two, and are never handed to
    two runs at once: whoever holds them runs one at a time."""

    def __init__(self, pin: Pin = lambda size: None) -> None:
        self._pin = pin
        self._kept: dict[str, Bytes] = {}
        self.pinned = True
        """Whether all of them are where a device copies from by itself; with none yet, nobody knows better."""

    def array(self, name: str, shape: Sequence[int], dtype: Any) -> Array:
        """An array in the buffer of this name, with whatever was there before."""
        kind = np.dtype(dtype)
        size = prod(shape) * kind.itemsize
        kept = self._kept.get(name)
        if kept is None or len(kept) < size:
            kept = self._kept[name] = self._made(max(SMALLEST, 1 << (size - 1).bit_length() if size else 0))
        array: Array = kept[:size].view(kind).reshape(shape)
        return array

    def _made(self, size: int) -> Bytes:
        pinned = self._pin(size)
        if pinned is None:
            self.pinned = False
            return np.empty(size, np.uint8)
        return pinned
