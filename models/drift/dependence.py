"""How much less a stream says than as many independent records would."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MOST: Final = 100.0
SIGNIFICANT: Final = 3.0
"""Standard errors of a correlation of independent records, 1 / sqrt(n): less is taken for none."""
TINY: Final = 1e-6
"""Deviation that is rounding alone."""


def of_values(values: NDArray[np.floating[Any]]) -> float:
    """1 + 2 (r1 + r2 + ...), r1 the correlation of neighbours and so on up to the first that isn't significant; within
    1 and 100. 1 of independent values, 19 of an AR(1) process with .9: the variance of a mean is so many times larger.

    Source: Priestley 1981, 5.3; where the sum ends: Geyer 1992, simplified.
    """
    apart = values - values.mean(dtype=np.float64)
    n, squares = len(apart), float(np.dot(apart, apart))
    if squares <= n * TINY**2:
        return 1.0
    return _sum(n, lambda lag: float(np.dot(apart[lag:], apart[:-lag])) / squares)


def of_labels(labels: NDArray[np.integer[Any]], counts: NDArray[np.int64]) -> float:
    """Likewise of labels: how much likelier than by chance two of them are the same, in place of a correlation."""
    n = len(labels)
    alike = float(((counts / n) ** 2).sum())
    if alike >= 1:
        return 1.0
    return _sum(n, lambda lag: (float((labels[lag:] == labels[:-lag]).mean()) - alike) / (1 - alike))


def _sum(n: int, correlation: Callable[[int], float]) -> float:
    total = 1.0
    for lag in range(1, n // 4):
        one = correlation(lag)
        if one < SIGNIFICANT / math.sqrt(n) or total > MOST:
            break
        total += 2 * one
    return min(total, MOST)
