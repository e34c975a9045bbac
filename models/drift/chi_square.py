"""Whether two samples have the same shares of some labels: the chi-square test of homogeneity."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

FEWEST: Final = 10
"""Counts of a label in both samples together, else it isn't looked at."""

Counts = NDArray[np.int64]


def statistic(reference: Counts, window: Counts) -> tuple[float, int]:
    """The statistic and its degrees of freedom; (0.0, 0) where there is nothing to compare.

    Source: Press et al. 2007, 14.3.3, for samples of different sizes.
    """
    looked = reference + window >= FEWEST
    r, s = reference[looked], window[looked]
    if len(r) < 2:
        return 0.0, 0
    ratio = math.sqrt(window.sum() / reference.sum())
    return float(((ratio * r - s / ratio) ** 2 / (r + s)).sum()), len(r) - 1


def chance(x: float, freedom: int) -> float:
    """How likely a chi-square of so many degrees of freedom is at least x: the upper incomplete gamma function.

    Source: Press et al. 2007, 6.2: a series below freedom + 2, a continued fraction (modified Lentz) above.
    """
    if x <= 0 or freedom < 1:
        return 1.0
    a, y = freedom / 2, x / 2
    scale = a * math.log(y) - y - math.lgamma(a)
    if y < a + 1:
        term = total = 1 / a
        k = a
        while term > total * 1e-15:
            k += 1
            term *= y / k
            total += term
        return max(1.0 - total * math.exp(scale), 0.0)
    tiny = 1e-300
    b = y + 1 - a
    c, d = 1 / tiny, 1 / b
    found = d
    for k in range(1, 10_000):
        b += 2
        d = 1 / _away(b - k * (k - a) * d, tiny)
        c = _away(b - k * (k - a) / c, tiny)
        found *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return found * math.exp(scale) if scale > -745 else 0.0


def critical(level: float, freedom: int) -> float:
    """The smallest chi-square whose chance is the level or less, within a millionth of itself; 0.0 without a degree of
    freedom."""
    if freedom < 1:
        return 0.0
    low, high = 0.0, 4.0 * freedom + 100.0
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle, freedom) > level else (low, middle)
    return high


def _away(x: float, tiny: float) -> float:
    return tiny if abs(x) < tiny else x
