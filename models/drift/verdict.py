"""A window of outcomes beside a reference: which figures are worse, and whether that can be chance."""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec

from models.drift.tally import Sums, Tally, auc_deviation
from models.quality import Quality

Metric = Literal["accuracy", "auc", "calibration", "mae", "bias"]

CRITICAL: Final = 3.0
"""Deviations by which a figure must be worse: 1 in 740 by chance, and twice in a row."""
QUIET: Final = 2.0
"""Deviations below which it is as good as ever."""
FLOORS: Final[dict[Metric, float]] = {"accuracy": 0.02, "auc": 0.02, "calibration": 0.05, "mae": 0.1, "bias": 0.25}
"""What is worth telling: points of accuracy and AUC, of the gap between probability and accuracy; of the reference's
mean absolute error for mae and bias."""
BAD: Final = 5.0
"""A change of so many floors is critical."""


class Verdict(msgspec.Struct, frozen=True):
    """One figure."""

    metric: Metric
    window: float
    reference: float
    worse: float
    """By how much, in the unit of FLOORS; below 0 where it is better."""
    z: float
    """worse, in deviations."""

    @property
    def bad(self) -> bool:
        """Worse, and neither by chance nor by next to nothing."""
        return self.z >= CRITICAL and self.worse >= FLOORS[self.metric]

    @property
    def level(self) -> int:
        """0: fine; 1: worse; 2: far worse."""
        return self.bad + (self.bad and self.worse >= BAD * FLOORS[self.metric])


def verdicts(tally: Tally, window: Sums, reference: Sums | Quality) -> list[Verdict]:
    """Each figure that both have. window has outcomes; reference: sums of such, or what a manifest declares."""
    ours = tally.quality(window)
    theirs = reference if isinstance(reference, Quality) else tally.quality(reference)
    if ours is None or theirs is None:
        return []
    known = None if isinstance(reference, Quality) else reference
    if tally.labels:
        found = [
            _accuracy(ours, theirs),
            _auc(tally, window, theirs, known),
            _calibration(tally, window, theirs, known),
        ]
    else:
        found = [_mae(ours, theirs), _bias(ours, theirs)]
    return [verdict for verdict in found if verdict is not None]


def _verdict(metric: Metric, ours: float, theirs: float, worse: float, deviation: float) -> Verdict:
    return Verdict(metric, ours, theirs, worse, worse / deviation if deviation > 0 else math.copysign(1e3, worse))


def _accuracy(ours: Quality, theirs: Quality) -> Verdict | None:
    if ours.accuracy is None or theirs.accuracy is None:
        return None
    n, m = ours.rows, theirs.rows
    # One outcome more on either side: a share of 0 or 1 isn't certain.
    both = (ours.accuracy * n + theirs.accuracy * m + 1) / (n + m + 2)
    deviation = math.sqrt(both * (1 - both) * (1 / n + 1 / m))
    return _verdict("accuracy", ours.accuracy, theirs.accuracy, theirs.accuracy - ours.accuracy, deviation)


def _auc(tally: Tally, window: Sums, theirs: Quality, reference: Sums | None) -> Verdict | None:
    ranks = tally.ranks(window)
    if not ranks or theirs.auc is None or len(ranks) < tally.ranked:
        return None
    auc = sum(rank.auc for rank in ranks) / len(ranks)
    if reference is not None:
        before = tally.ranks(reference)
        if len(before) < len(ranks):
            return None
        beside = [rank.deviation for rank in before]
    else:
        scale = theirs.rows / window[0]
        beside = [auc_deviation(theirs.auc, rank.those * scale, rank.others * scale) for rank in ranks]
    # Of a mean over labels, as if they went together: too much rather than too little.
    deviation = sum(math.hypot(rank.deviation, other) for rank, other in zip(ranks, beside, strict=True)) / len(ranks)
    few = 1 / min(min(rank.those, rank.others) for rank in ranks)
    return _verdict("auc", auc, theirs.auc, theirs.auc - auc, math.hypot(deviation, few))


def _calibration(tally: Tally, window: Sums, theirs: Quality, reference: Sums | None) -> Verdict | None:
    gap, deviation = tally.gap(window)
    deviation = math.hypot(deviation, 1 / window[0])
    if reference is None:
        if theirs.ece is None:
            return None
        return _verdict("calibration", gap, theirs.ece, abs(gap) - theirs.ece, deviation)
    before, beside = tally.gap(reference)
    worse = abs(gap - before) if abs(gap) > abs(before) else -abs(gap - before)
    return _verdict("calibration", gap, before, worse, math.hypot(deviation, beside))


def _mae(ours: Quality, theirs: Quality) -> Verdict | None:
    if ours.mae is None or theirs.mae is None or ours.rmse is None:
        return None
    rmse = ours.rmse if theirs.rmse is None else theirs.rmse
    deviation = math.hypot(_of_mean(ours.rmse, ours.mae, ours.rows), _of_mean(rmse, theirs.mae, theirs.rows))
    unit = theirs.mae or 1e-300
    return _verdict("mae", ours.mae, theirs.mae, (ours.mae - theirs.mae) / unit, deviation / unit)


def _bias(ours: Quality, theirs: Quality) -> Verdict | None:
    if ours.bias is None or theirs.bias is None or ours.rmse is None or not theirs.mae:
        return None
    rmse = ours.rmse if theirs.rmse is None else theirs.rmse
    deviation = math.hypot(_of_mean(ours.rmse, ours.bias, ours.rows), _of_mean(rmse, theirs.bias, theirs.rows))
    moved = abs(ours.bias - theirs.bias)
    worse = moved if abs(ours.bias) > abs(theirs.bias) else -moved
    return _verdict("bias", ours.bias, theirs.bias, worse / theirs.mae, deviation / theirs.mae)


def _of_mean(rms: float, mean: float, n: int) -> float:
    """The deviation of a mean of n, from its root mean square."""
    return math.sqrt(max(rms * rms - mean * mean, 0.0) / n)
