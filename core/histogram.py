"""How often values of which size were seen: an addition a batch, and quantiles when somebody asks."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple


class Exemplar(NamedTuple):
    """One value of a bucket, and the trace that it comes from."""

    trace: str
    value: float
    at: float
    """Seconds since epoch."""


class Histogram:
    """Counts by bucket; a bucket holds the values up to its bound, the last one all others. For one thread alone."""

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """bounds: ascending."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        """Sum of all values."""
        self.exemplars: list[Exemplar | None] = [None] * len(self.counts)
        """The newest of each bucket."""

    def observe(self, value: float, times: int = 1, trace: str | None = None) -> None:
        """A value that was seen so many times; trace: where to look for one of them."""
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += times
        self.total += times * value
        if trace is not None:
            self.exemplars[bucket] = Exemplar(trace, value, time.time())

    @property
    def count(self) -> int:
        """How many values were seen."""
        return sum(self.counts)

    def quantile(self, q: float, before: Sequence[int] | None = None) -> float | None:
        """The value that a share q of all lie below, as far as buckets can tell; of those since `counts` was `before`.

        None where there are none. What is larger than the last bound counts as that bound.
        """
        counts = self.counts if before is None else [now - then for now, then in zip(self.counts, before, strict=True)]
        sums = list(accumulate(counts))
        if not sums[-1]:
            return None
        rank = q * sums[-1]
        bucket = bisect_left(sums, max(rank, 1))
        if bucket == len(self.bounds):
            return self.bounds[-1]
        low, high = (self.bounds[bucket - 1] if bucket else 0.0), self.bounds[bucket]
        inside = counts[bucket]
        return min(high, low + (high - low) * (rank - sums[bucket] + inside) / inside)  # a last bit may be too many
