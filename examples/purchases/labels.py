"""What became of the customers: the answers that the stream itself gives, 60 days after each question."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from core.events import Observation, Prediction
from examples.purchases.data import DAY_MS

HORIZON_MS: Final = 60 * DAY_MS
RETURNS: Final = "returns"
LAPSES: Final = "lapses"


class Purchases:
    """customer -> the times of their purchases. Takes them in any order, and twice."""

    def __init__(self, observations: Iterable[Observation] = ()) -> None:
        self._times: dict[str, list[int]] = {}
        self.newest = 0
        """Time of the newest purchase, ms since epoch: how far the answers are known."""
        for each in observations:
            self.add(each.session, each.ts)

    def add(self, session: str, ts: int) -> None:
        """Takes a purchase in."""
        times = self._times.setdefault(session, [])
        if not times or ts > times[-1]:
            times.append(ts)
        elif ts != times[bisect_right(times, ts) - 1]:
            insort(times, ts)
        self.newest = max(self.newest, ts)

    def again(self, session: str, ts: int) -> bool:
        """Whether the customer bought again on a later day, within 60. More of the same day is the same visit."""
        times = self._times.get(session, [])
        later = bisect_right(times, ts)
        return later < len(times) and times[later] - ts <= HORIZON_MS

    def known(self, ts: int) -> bool:
        """Whether the question of that time is answered by now."""
        return ts + HORIZON_MS <= self.newest


@dataclass(frozen=True, slots=True)
class Quality:
    """How good a version's answers were."""

    judged: int
    """Predictions whose 60 days are over."""
    returned: float
    """Share of them whose customer bought again."""
    auc: float
    """Odds that one who returned had the higher score than one who didn't; NaN without both kinds."""


class Judge:
    """Joins predictions to the purchases that followed them. Both may come in any order; repeats change nothing."""

    def __init__(self) -> None:
        self.purchases = Purchases()
        self._seen: set[str] = set()
        self._asked: list[tuple[str, int, str, float]] = []
        self.repeats = 0
        """Predictions that came again, with an id that was seen before."""

    def bought(self, observation: Observation) -> None:
        """Takes a purchase in."""
        self.purchases.add(observation.session, observation.ts)

    def predicted(self, prediction: Prediction) -> None:
        """Takes a prediction in; a shadow's answer was given to nobody and isn't judged."""
        if prediction.role == "shadow":
            return
        if prediction.id in self._seen:
            self.repeats += 1
            return
        self._seen.add(prediction.id)
        self._asked.append((prediction.session, prediction.ts, prediction.version, prediction.scores[RETURNS]))

    def verdicts(self, since_ms: int = 0) -> dict[str, Quality]:
        """version -> how good it was, by the predictions from since_ms on that can be judged by now."""
        known: dict[str, list[tuple[bool, float]]] = {}
        for session, ts, version, score in self._asked:
            if ts >= since_ms and self.purchases.known(ts):
                known.setdefault(version, []).append((self.purchases.again(session, ts), score))
        return {version: quality(*zip(*pairs, strict=True)) for version, pairs in sorted(known.items())}


def auc(returned: ArrayLike, scores: ArrayLike) -> float:
    """Area under the ROC curve by ranks (Mann and Whitney 1947); equal scores count half. NaN without both kinds."""
    positive = np.asarray(returned, np.bool_)
    _, place, counts = np.unique(np.asarray(scores, np.float64), return_inverse=True, return_counts=True)
    rank = np.cumsum(counts) - (counts - 1) / 2  # the mean rank of equal scores, from 1
    n, m = int(positive.sum()), int((~positive).sum())
    if not n or not m:
        return float("nan")
    return float((rank[place][positive].sum() - n * (n + 1) / 2) / (n * m))


def quality(returned: Sequence[bool], scores: Sequence[float]) -> Quality:
    """Of answers whose 60 days are over; at least one."""
    return Quality(len(returned), sum(returned) / len(returned), auc(returned, scores))
