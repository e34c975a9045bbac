"""The answers since the last full window, as far as they are needed when it is full."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from models.drift.batch import Batch, moments

EXAMPLES: Final = 3
"""Answers that are named: those with the lowest confidence."""


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
    lowest: list[tuple[float, str]] = msgspec.field(default_factory=list)
    """Confidence and source, lowest first, the earlier one first where they are the same."""

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
        order = np.argsort(batch.confidence[start:end], kind="stable")[:EXAMPLES]
        more = [(float(batch.confidence[start + k]), batch.answers.source(start + k)) for k in order.tolist()]
        self.lowest = sorted(self.lowest + more, key=lambda one: one[0])[:EXAMPLES]

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
