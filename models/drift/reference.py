"""A version's own confidences as they were when it began: what its later ones are measured against."""

from __future__ import annotations

import math
from typing import Final, Literal, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from models.drift import dependence
from models.drift.kolmogorov import critical

RECORDS: Final = 2000
FEWEST: Final = 500
"""With fewer nothing can be told apart: where a change comes before, there is no reference."""
WINDOW: Final = 200
LEVEL: Final = 0.01
"""Of the test of a window."""
BINS: Final = 20

Origin = Literal["first", "manifest"]
"""Of a reference: the version's first answers, or the sample in its manifest."""


class ConfidenceReference(msgspec.Struct, frozen=True, kw_only=True):
    """Frozen once it is complete; 8 KB."""

    values: bytes
    """float32, growing."""
    mean: float
    deviation: float
    histogram: list[int]
    dependence: float
    """models/drift/dependence.py; 1.0 where the order isn't known."""
    critical: float
    """Distance at which a window of 200 differs, from the exact test, times sqrt(dependence)."""
    first: int
    """Number of its first answer."""
    at: int
    """Answers of the version before the first window: windows begin there."""
    origin: Origin
    from_ts: int = 0
    to_ts: int = 0
    """Event times of the first and the last one; 0 of a manifest's."""

    @classmethod
    def of(cls, values: NDArray[np.float32], first: int, at: int, origin: Origin, ts: tuple[int, int]) -> Self:
        """values: in their order where origin is `first`."""
        tied = dependence.of_values(values) if origin == "first" else 1.0
        growing = np.sort(values)
        return cls(
            values=growing.astype("<f4").tobytes(),
            mean=float(growing.mean(dtype=np.float64)),
            deviation=float(growing.std(dtype=np.float64)),
            histogram=histogram(growing),
            dependence=tied,
            critical=critical(LEVEL, len(growing), WINDOW) * math.sqrt(tied),
            first=first,
            at=at,
            origin=origin,
            from_ts=ts[0],
            to_ts=ts[1],
        )

    def __len__(self) -> int:
        return len(self.values) // 4

    @property
    def growing(self) -> NDArray[np.float32]:
        """Its values, smallest first."""
        return np.frombuffer(self.values, "<f4")

    def told(self) -> dict[str, object]:
        """For people, JSON."""
        return {
            "origin": self.origin,
            "records": len(self),
            "from_ts": self.from_ts,
            "to_ts": self.to_ts,
            "mean": round(self.mean, 6),
            "deviation": round(self.deviation, 6),
            "dependence": round(self.dependence, 3),
        }


def histogram(values: NDArray[np.float32]) -> list[int]:
    """Counts in each of the bins."""
    counts: list[int] = np.bincount(bins(values), minlength=BINS).tolist()
    return counts


def bins(values: NDArray[np.float32]) -> NDArray[np.intp]:
    """BINS of one width over [0, 1]; a value on a border is in the upper one, 1 in the last."""
    found: NDArray[np.intp] = np.minimum((values * np.float32(BINS)).astype(np.intp), BINS - 1)
    return found
