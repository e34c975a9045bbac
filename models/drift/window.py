"""The answers since the last full window, as far as they are needed when it is full."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from models.drift.batch import Batch, moments
from models.drift.excerpt import Low, lowest


class Window(msgspec.Struct):
    """Fills up; what it holds is at most 1 KB."""

    values: bytes = b""
    """float32, as they came."""
    ts: int = 0
    source: str = ""
    """Of the first answer."""
    total: int = 0
    squares: int = 0
    """In UNIT and UNIT**2."""
    lowest: list[Low] = msgspec.field(default_factory=list)
    """Lowest first, the earlier one first where they are the same."""

    def __len__(self) -> int:
        return len(self.values) // 4

    def add(self, batch: Batch, start: int, end: int) -> None:
        """The answers from start up to end."""
        if start >= end:
            return
        if not self.values:
            self.ts, self.source = int(batch.answers.ts[start]), batch.answers.source(start)
        self.values += batch.confidence[start:end].astype("<f4", copy=False).tobytes()
        self.total += int(batch.sums[end] - batch.sums[start])
        self.squares += int(batch.squares[end] - batch.squares[start])
        self.lowest = lowest(self.lowest, batch.confidence[start:end], batch.answers, start)

    def moments(self, batch: Batch, start: int, end: int) -> tuple[float, float]:
        """Mean and standard deviation of its values and these."""
        total = self.total + int(batch.sums[end] - batch.sums[start])
        squares = self.squares + int(batch.squares[end] - batch.squares[start])
        return moments(len(self) + end - start, total, squares)

    def and_of(self, batch: Batch, start: int, end: int) -> NDArray[np.float32]:
        """Its values and these, without changing it."""
        if not self.values:
            return batch.confidence[start:end]
        return np.concatenate((np.frombuffer(self.values, "<f4"), batch.confidence[start:end]))
