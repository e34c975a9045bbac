"""How decided a model was: one score a row, for every prediction, so it has to cost next to nothing."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Probabilities = NDArray[np.floating[Any]]
Confidences = NDArray[np.float32]

DECIDED: Final = 0.6
"""Weight of how little entropy is left."""
AHEAD: Final = 0.4
"""Weight of how far the first label is ahead of the second."""
_TINY: Final = float(np.finfo(np.float32).tiny)
"""Stands for 0 in log: 0 ln 0 is 0."""


def confidence(p: Probabilities) -> Confidences:
    """How decided a classifier was, row by row: .6 (1 - H(p) / ln C) + .4 (p1 - p2), p1 >= p2 the two largest.

    p: (n, C) float32, C >= 2, each row sums to 1 within 1e-3. Returns (n,) float32 in [0, 1]: a score, not a
    probability; (.85, .15) gives .514. Raises ValueError naming the first row that is not finite.
    Sources: entropy, Shannon 1948; margin, Scheffer et al. 2001; weights, docs/decisions.md.
    """
    if p.ndim != 2 or p.shape[1] < 2:
        raise ValueError(f"probabilities must be (n, C) with C >= 2, got {p.shape}")
    columns = np.ascontiguousarray(p.T, dtype=np.float32)
    certainty = columns * np.log(np.maximum(columns, _TINY))
    if len(columns) == 2:
        ahead = np.abs(columns[0] - columns[1])
        left = certainty[0] + certainty[1]
    else:
        two = np.partition(columns, -2, axis=0)[-2:]
        ahead = two[1] - two[0]
        left = certainty.sum(axis=0)
    score = DECIDED + (DECIDED / np.log(len(columns), dtype=np.float32)) * left + AHEAD * ahead
    if not np.isfinite(score).all():
        row = int(np.flatnonzero(~np.isfinite(score))[0])
        raise ValueError(f"row {row} of the probabilities is not finite: {p[row].tolist()}")
    within: Confidences = np.minimum(np.maximum(score, 0.0, out=score), 1.0, out=score)
    return within


def interval_confidence(interval: Probabilities, widest: float) -> Confidences:
    """How decided a regressor was, from its own interval: 1 at width 0, falling to 0 at the widest.

    interval: (n, 2), lower and upper bound in the value's unit; widest: the manifest's width at which nothing is
    known, > 0. Returns (n,) float32 in [0, 1]. Raises ValueError naming the first row that is not finite.
    """
    width = np.abs(np.subtract(interval[:, 1], interval[:, 0], dtype=np.float64))
    if not np.isfinite(width).all():
        row = int(np.flatnonzero(~np.isfinite(width))[0])
        raise ValueError(f"row {row} of the interval is not finite: {interval[row].tolist()}")
    return np.clip(1.0 - width / widest, 0.0, 1.0).astype(np.float32, copy=False)
