"""A fall of confidence that ADWIN found."""

from __future__ import annotations

import math
from typing import Final, Self

import msgspec

from models.drift.adwin import Cut
from models.drift.batch import Batch

SPREAD: Final = 4.0
"""Where answers depend on each other: a drop is so many of the deviations that dependence alone adds to it."""


class Fall(msgspec.Struct, frozen=True):
    """Kept, since it counts for some time."""

    number: int
    """Of the answer at which it was found."""
    source: str
    ts: int
    before: float
    after: float
    """Means on both sides of the cut."""
    since: int
    """Answers behind the cut."""

    @classmethod
    def of(cls, cut: Cut, batch: Batch) -> Self:
        """A cut of the batch's sums."""
        i = cut.at - 1
        ts, source = int(batch.answers.ts[i]), batch.answers.source(i)
        return cls(batch.first + i, source, ts, round(cut.before, 6), round(cut.after, 6), cut.since)

    def told(self, number: int) -> dict[str, object]:
        """For people, JSON, as seen from a later answer."""
        return {
            "source": self.source,
            "ts": self.ts,
            "records_ago": number - self.number,
            "before": self.before,
            "after": self.after,
            "records_behind_cut": self.since,
        }


def tells(cut: Cut, deviation: float, tied: float) -> bool:
    """Whether a cut, which takes answers for independent, says something where they are not.

    deviation, tied: the answers' standard deviation and dependence; with 1 each cut does.
    """
    noise = deviation * math.sqrt((tied - 1) * (1 / cut.since + 1 / (cut.width - cut.since)))
    return abs(cut.before - cut.after) >= SPREAD * noise
