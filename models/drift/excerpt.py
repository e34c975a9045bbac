"""Some answers in a row, as an alert shows them: where they stand, how their confidence is spread, the lowest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from models.drift.answers import Answers
from models.drift.batch import Batch
from models.drift.reference import BINS

EXAMPLES: Final = 3
"""Answers that are named: the lowest ones."""
Low = tuple[float, str]
"""A value, and where its observation stands."""


class Excerpt(msgspec.Struct, array_like=True):
    """Fills up; some 150 bytes."""

    records: int = 0
    source: str = ""
    ts: int = 0
    """Of the first answer."""
    counts: list[int] = msgspec.field(default_factory=list)
    """By confidence; empty: no answer yet."""
    lowest: list[Low] = msgspec.field(default_factory=list)
    """Lowest first, the earlier one first where they are the same."""

    def add(self, batch: Batch, start: int, end: int, most: int = EXAMPLES) -> None:
        """The answers from start up to end. most: how many are named."""
        if start >= end:
            return
        counts = np.bincount(batch.bins[start:end], minlength=BINS)
        if not self.records:
            self.source, self.ts = batch.answers.source(start), int(batch.answers.ts[start])
        else:
            counts += self.counts
        self.records += end - start
        self.counts = counts.tolist()
        self.lowest = lowest(self.lowest, batch.confidence[start:end], batch.answers, start, most)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """One after the other; one at least."""
        return cls(
            sum(part.records for part in parts),
            parts[0].source,
            parts[0].ts,
            [sum(column) for column in zip(*(part.counts for part in parts), strict=True)],
            sorted((low for part in parts for low in part.lowest), key=lambda low: low[0]),
        )

    def told(self, batch: Batch, i: int, beside: Sequence[int] | None) -> dict[str, object]:
        """Evidence. i: its last answer; beside: how confidences were spread in the reference, if there is one."""
        return {
            "window": {
                "records": self.records,
                "from": self.source,
                "to": batch.answers.source(i),
                "from_ts": self.ts,
                "to_ts": int(batch.answers.ts[i]),
            },
            "histogram": pair(beside, self.counts),
            "lowest": shown(self.lowest),
        }


def lowest(
    known: list[Low], values: NDArray[np.float32], answers: Answers, start: int, most: int = EXAMPLES
) -> list[Low]:
    """The lowest of those that are known and of these values, the earlier one of equal ones. start: place of the first
    value among the answers."""
    least = int(values.argmin())
    if len(known) == most and values[least] >= known[-1][0]:
        return known
    places = [least] if most == 1 else np.argsort(values, kind="stable")[:most].tolist()
    more = [(float(values[k]), answers.source(start + k)) for k in places]
    return sorted(known + more, key=lambda low: low[0])[:most]


def shown(lows: Sequence[Low]) -> list[dict[str, object]]:
    """For people, JSON."""
    return [{"source": source, "confidence": round(value, 6)} for value, source in lows]


def pair(reference: Sequence[int] | None, window: Sequence[int]) -> dict[str, object]:
    """Counts in bins of one width from 0 to 1, for people, JSON."""
    return {"from": 0, "to": 1, "reference": None if reference is None else list(reference), "window": list(window)}
