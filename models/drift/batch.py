"""Some answers with what all confidence rules need of them, computed once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from models.drift.answers import Answers
from models.drift.reference import bins

UNIT: Final = 1 << 24
"""A confidence of 1 in the whole numbers that sums are made of: they are exact, so no cut of the stream rounds them
differently. float32 knows no finer steps above .5."""
LONGEST: Final = 8192
"""Answers in a batch: sums of squares stay below 2**63."""


@dataclass(frozen=True, slots=True)
class Batch:
    """n answers, 1 to LONGEST, each with a finite confidence in [0, 1]."""

    answers: Answers
    first: int
    """How many of the version came before."""
    confidence: NDArray[np.float32]
    sums: NDArray[np.int64]
    """(n + 1,): of the answers before each place, in UNIT."""
    squares: NDArray[np.int64]
    """(n + 1,): likewise of squares, in UNIT**2."""
    bins: NDArray[np.intp]
    """(n,): of the histogram that people see."""

    def __len__(self) -> int:
        return len(self.confidence)

    @classmethod
    def of(cls, answers: Answers, confidence: NDArray[np.float32], first: int) -> Self:
        """confidence: of the answers, finite and within [0, 1]."""
        n = len(confidence)
        units = np.rint(confidence * np.float64(UNIT)).astype(np.int64)
        sums, squares = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
        np.cumsum(units, out=sums[1:])
        np.cumsum(units * units, out=squares[1:])
        return cls(answers, first, confidence, sums, squares, bins(confidence))

    def moments(self, start: int, end: int) -> tuple[float, float]:
        """Mean and standard deviation of the answers from start up to end."""
        return moments(
            end - start, int(self.sums[end] - self.sums[start]), int(self.squares[end] - self.squares[start])
        )


def moments(n: int, total: int, squares: int) -> tuple[float, float]:
    """Mean and standard deviation (of the population) of n confidences, from their sums in UNIT and UNIT**2."""
    return total / (n * UNIT), math.sqrt(max(n * squares - total * total, 0)) / (n * UNIT)
