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
    needed: float = 0.0
    """By how much the means had to differ."""

    @classmethod
    def of(cls, cut: Cut, batch: Batch) -> Self:
        """A cut of the batch's sums."""
        i = cut.at - 1
        ts, source = int(batch.answers.ts[i]), batch.answers.source(i)
        before, after, needed = (round(one, 6) for one in (cut.before, cut.after, cut.needed))
        return cls(batch.first + i, source, ts, before, after, cut.since, needed)

    def told(self, number: int) -> dict[str, object]:
        """For people, JSON, as seen from a later answer."""
        return {
            "source": self.source,
            "ts": self.ts,
            "records_ago": number - self.number,
            "before": self.before,
            "after": self.after,
            "critical": self.needed,
            "records_behind_cut": self.since,
        }


def tells(cut: Cut, deviation: float, tied: float) -> bool:
    """Whether a cut, which takes answers for independent, says something where they are not.

    deviation, tied: the answers' standard deviation and dependence; with 1 each cut does.
    """
    noise = deviation * math.sqrt((tied - 1) * (1 / cut.since + 1 / (cut.width - cut.since)))
    return abs(cut.before - cut.after) >= SPREAD * noise
