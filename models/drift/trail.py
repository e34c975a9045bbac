"""Mean and deviation over time, in a bounded number of points."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from models.drift.batch import Batch, moments

EVERY: Final = 100
RECENT: Final = 40
"""Newest points that are kept one by one: 4,000 answers."""
LIFE: Final = 64
"""Points for the whole life: when there are so many, two neighbours become one."""

Point = tuple[int, float, float]
"""Event time of its last answer, mean and deviation of its answers."""


class Trail(msgspec.Struct):
    """Every 100 answers one point."""

    total: int = 0
    squares: int = 0
    """Of the answers since the last point, in UNIT and UNIT**2."""
    recent: list[Point] = msgspec.field(default_factory=list)
    life: list[Point] = msgspec.field(default_factory=list)
    each: int = 1
    """Points in one of `life`."""
    counted: int = 0
    means: float = 0.0
    seconds: float = 0.0
    """Points that become the next one of `life`: how many, and the sums of their first and second moments."""

    def fold(self, batch: Batch) -> None:
        """The next answers."""
        done = 0
        for end in range(EVERY - batch.first % EVERY, len(batch) + 1, EVERY):
            self._add(batch, done, end)
            mean, deviation = moments(EVERY, self.total, self.squares)
            self._keep((int(batch.answers.ts[end - 1]), round(mean, 6), round(deviation, 6)))
            self.total = self.squares = 0
            done = end
        self._add(batch, done, len(batch))

    def _add(self, batch: Batch, start: int, end: int) -> None:
        self.total += int(batch.sums[end] - batch.sums[start])
        self.squares += int(batch.squares[end] - batch.squares[start])

    def _keep(self, point: Point) -> None:
        self.recent.append(point)
        del self.recent[:-RECENT]
        _, mean, deviation = point
        self.counted += 1
        self.means += mean
        self.seconds += mean * mean + deviation * deviation
        if self.counted == self.each:
            mean = self.means / self.each
            deviation = math.sqrt(max(self.seconds / self.each - mean * mean, 0.0))
            self.life.append((point[0], round(mean, 6), round(deviation, 6)))
            self.counted, self.means, self.seconds = 0, 0.0, 0.0
        if len(self.life) == LIFE:
            self.life = [_joined(*self.life[k : k + 2]) for k in range(0, LIFE, 2)]
            self.each *= 2

    def told(self) -> dict[str, object]:
        """For people, JSON."""

        def shown(points: list[Point]) -> list[dict[str, object]]:
            return [{"ts": ts, "mean": mean, "deviation": deviation} for ts, mean, deviation in points]

        return {
            "recent": {"records": EVERY, "points": shown(self.recent)},
            "life": {"records": EVERY * self.each, "points": shown(self.life)},
        }


def _joined(first: Point, second: Point) -> Point:
    """Two points of as many answers."""
    apart = (first[1] - second[1]) / 2
    deviation = math.sqrt((first[2] ** 2 + second[2] ** 2) / 2 + apart**2)
    return second[0], round((first[1] + second[1]) / 2, 6), round(deviation, 6)
