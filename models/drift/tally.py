"""Sums over outcomes from which figures follow: they add up, and a correction takes back exactly what was added."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.drift.outcomes import Outcome
from models.quality import Quality

UNIT: Final = 1 << 20
"""Probabilities and nats are summed as whole numbers of this part: sums of those are exact in any order."""
RELIABILITY: Final = 15
"""Bins of one width of the best label's probability."""
BINS: Final = 128
"""Of the second of two labels' log odds, from -8 to 8: .125 each, a 32nd around p = .5. Two scores in one bin count as
equal, which moves the AUC by rank_error() at most."""
BINS_OF_MANY: Final = 64
"""Where there are more labels: log odds of .25."""
MANY: Final = 10
"""With more labels than these there is no AUC: its bins would be most of what is kept."""
_FURTHEST: Final = 8.0
_LEAST: Final = float(np.finfo(np.float32).eps)
"""Of the true label's probability in the log loss: scores are float32."""
_HUGE: Final = 1e150
"""An error whose square is no float."""

Sums = list[Any]
"""Of classifiers whole numbers: outcomes, right ones, log loss, squared error of the best label's probability; then per
bin of reliability its outcomes, probabilities and right ones; then per label (of two: the second) and bin of log odds
those that are something else, then those that are it. Of regressors: outcomes, and floats: |error|, error squared,
error."""


class Tally:
    """How the outcomes of one kind of model are summed up."""

    def __init__(self, labels: int) -> None:
        """labels: 0 of regressors."""
        self.labels = labels
        self.ranked = 0 if labels > MANY or not labels else 1 if labels == 2 else labels
        """Labels with an AUC of their own."""
        self._bins = BINS if labels == 2 else BINS_OF_MANY
        self._ranks = 4 + 3 * RELIABILITY
        self.size = self._ranks + 2 * self._bins * self.ranked if labels else 4

    def empty(self) -> Sums:
        """Nothing yet."""
        return [0] * self.size if self.labels else [0, 0.0, 0.0, 0.0]

    def usable(self, outcome: Outcome) -> bool:
        """Whether it can be summed: not with NaN in it, or another number of labels."""
        scores = outcome.scores
        if outcome.weight not in (1, -1) or not all(map(math.isfinite, scores)):
            return False
        if self.labels:
            return len(scores) == self.labels and 0 <= outcome.label < self.labels
        truth = outcome.truth
        return len(scores) == 1 and truth is not None and abs(scores[0] - truth) < _HUGE

    def add(self, sums: Sums, outcome: Outcome) -> None:
        """One that is usable; takes it back where its weight says so."""
        weight, scores = outcome.weight, outcome.scores
        sums[0] += weight
        if not self.labels:
            self._add_error(sums, scores[0] - float(outcome.truth or 0.0), weight)
            return
        label = outcome.label
        p = max(scores)
        right = scores.index(p) == label
        p = min(max(p, 0.0), 1.0)
        sums[1] += weight * right
        sums[2] -= weight * round(math.log(min(max(scores[label], _LEAST), 1.0)) * UNIT)
        sums[3] += weight * round((p - right) ** 2 * UNIT)
        at = 4 + 3 * min(int(p * RELIABILITY), RELIABILITY - 1)
        sums[at] += weight
        sums[at + 1] += weight * round(p * UNIT)
        sums[at + 2] += weight * right
        if self.ranked == 1:
            sums[self._ranks + self._bin(scores[1]) + (self._bins if label == 1 else 0)] += weight
        else:
            for one in range(self.ranked):
                at = self._ranks + 2 * one * self._bins + self._bin(scores[one])
                sums[at + (self._bins if label == one else 0)] += weight

    def _add_error(self, sums: Sums, error: float, weight: int) -> None:
        if not sums[0]:  # nothing is left of it, not even what rounding left
            sums[1:] = [0.0, 0.0, 0.0]
            return
        sums[1] += weight * abs(error)
        sums[2] += weight * error * error
        sums[3] += weight * error

    def _bin(self, p: float) -> int:
        odds = math.log(p / (1 - p)) if 0 < p < 1 else -_FURTHEST if p <= 0 else _FURTHEST
        return min(max(int((odds + _FURTHEST) * (self._bins / (2 * _FURTHEST))), 0), self._bins - 1)

    def quality(self, sums: Sums) -> Quality | None:
        """The figures; None where there are no outcomes."""
        n = sums[0]
        if n <= 0:
            return None
        if not self.labels:
            mean = max(sums[1], 0.0) / n
            return Quality(rows=n, mae=mean, rmse=math.sqrt(max(sums[2], 0.0) / n), bias=sums[3] / n)
        ranks = [rank.auc for rank in self.ranks(sums)]
        off = sum(abs(right - p) for _, p, right in self._reliability(sums))
        return Quality(
            rows=n,
            accuracy=_share(sums[1] / n),
            auc=_share(sum(ranks) / len(ranks)) if ranks and len(ranks) == self.ranked else None,
            log_loss=max(sums[2], 0) / UNIT / n,
            ece=_share(off / n),
        )

    def gap(self, sums: Sums) -> tuple[float, float]:
        """Of classifiers: by how much the best label's mean probability is above the accuracy, and the deviation of
        that mean."""
        n = sums[0]
        gap = (sum(sums[5 : self._ranks : 3]) / UNIT - sums[1]) / n
        return gap, math.sqrt(max(sums[3] / UNIT / n - gap * gap, 0.0) / n)

    def ranks(self, sums: Sums) -> list[Ranks]:
        """One for each label that has one, if there are outcomes both of it and of others."""
        width = 2 * self._bins
        bins = (sums[self._ranks + one * width :][:width] for one in range(self.ranked))
        ranks = (Ranks(np.array(each, float).reshape(2, self._bins)) for each in bins)
        return [rank for rank in ranks if rank.others > 0 and rank.those > 0]

    def reliability(self, sums: Sums) -> list[dict[str, float]]:
        """JSON: the bins with outcomes in them, how sure the answers were there, and how often right."""
        return [
            {"outcomes": n, "probability": round(p / n, 4), "right": round(right / n, 4)}
            for n, p, right in self._reliability(sums)
            if n > 0
        ]

    def _reliability(self, sums: Sums) -> Iterator[tuple[int, float, int]]:
        bins = iter(sums[4 : self._ranks])
        return ((n, p / UNIT, right) for n, p, right in zip(bins, bins, bins, strict=True))


def _share(found: float) -> float:
    """Where corrections came of outcomes that were never counted, a sum may be out of bounds."""
    return min(max(found, 0.0), 1.0)


class Ranks:
    """How well one label's probability tells it from the others, out of two histograms."""

    def __init__(self, counts: NDArray[np.float64]) -> None:
        """counts: (2, bins), of others and of those that are it, from small probabilities to large ones."""
        others, those = np.maximum(counts, 0)
        self.others, self.those = float(others.sum()), float(those.sum())
        below = np.cumsum(others) - others / 2
        above = self.those - np.cumsum(those) + those / 2
        self._found = below / max(self.others, 1)  # of one that is it: the others that it beats
        self._beaten = above / max(self.those, 1)
        self._weights = others, those
        self.auc = float((self._found * those).sum() / max(self.those, 1))
        self.error = float((others * those).sum() / max(2 * self.others * self.those, 1))
        """The AUC of the scores themselves is within this."""

    @property
    def deviation(self) -> float:
        """Of the AUC, by chance. Source: DeLong, DeLong and Clarke-Pearson 1988."""
        others, those = self._weights
        variance = 0.0
        for counts, n, each in ((those, self.those, self._found), (others, self.others, self._beaten)):
            variance += float((counts * (each - self.auc) ** 2).sum()) / n / max(n - 1, 1)
        return math.sqrt(variance)


def auc_deviation(auc: float, those: float, others: float) -> float:
    """As Ranks.deviation, where no more than the AUC is known. Source: Hanley and McNeil 1982."""
    if those < 1 or others < 1:
        return 0.5
    q1, q2 = auc / (2 - auc), 2 * auc * auc / (1 + auc)
    square = auc * auc
    variance = auc * (1 - auc) + (those - 1) * (q1 - square) + (others - 1) * (q2 - square)
    return math.sqrt(max(variance, 0.0) / (those * others))


def summed(parts: Sequence[Sums]) -> Sums:
    """All of them together; one at least."""
    return [sum(column) for column in zip(*parts, strict=True)]
