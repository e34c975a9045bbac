"""How likely a difference is by chance. No scipy: workers don't have it, and these few sums are exact."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


def together(n: float, m: float) -> float:
    """Two samples of n and m compared with each other: as one of this size compared with the truth."""
    return n * m / (n + m) if n and m else 0.0


def ks(distance: float, n: float) -> float:
    """At most the probability that a sample's distribution function is so far off somewhere by chance.

    n: size of the sample, of together() for two. Source: Massart 1990 (the bound of Dvoretzky, Kiefer and Wolfowitz);
    true for distributions with ties too, and close where it is small.
    """
    return min(1.0, 2 * math.exp(-2 * n * distance * distance))


def ks_critical(p: float, n: float) -> float:
    """The distance at which ks() is p."""
    return math.sqrt(math.log(2 / p) / (2 * n)) if n else 1.0


def chi_square(statistic: float, freedom: int) -> float:
    """Probability of so large a chi-square or a larger one, with a whole number of degrees of freedom.

    Source: the finite sums of Abramowitz and Stegun 26.4.4 and 26.4.5.
    """
    half = statistic / 2
    if freedom < 1 or half <= 0:
        return 1.0
    if half > 700:
        return 0.0
    odd = freedom % 2
    tail = math.erfc(math.sqrt(half)) if odd else 0.0
    term = math.exp(-half) * (math.sqrt(half) / math.gamma(1.5) if odd else 1.0)
    for step in range(freedom // 2):
        tail += term
        term *= half / (step + 1 + odd / 2)
    return min(1.0, tail)


def at_least(k: int, n: int, seen: float, rows: float) -> float:
    """Probability that k or more of n do what `seen` of `rows` did, when nothing has changed.

    The beta-binomial distribution with an even prior: it counts what so many rows don't tell. P = sum over x >= k of
    C(n, x) B(x + a, n - x + b) / B(a, b), a = seen + 1, b = rows - seen + 1.
    """
    if k <= 0:
        return 1.0
    a, b = seen + 1.0, rows - seen + 1.0
    first = (
        math.lgamma(n + 1)
        - math.lgamma(k + 1)
        - math.lgamma(n - k + 1)
        + math.lgamma(k + a)
        + math.lgamma(n - k + b)
        - math.lgamma(n + a + b)
        - math.lgamma(a)
        - math.lgamma(b)
        + math.lgamma(a + b)
    )
    x = np.arange(k, n, dtype=float)
    ratios = (n - x) * (x + a) / ((x + 1) * (n - x - 1 + b))
    return min(1.0, math.exp(first) + float(np.exp(first + np.cumsum(np.log(ratios))).sum()))


def share_changed(k: int, n: int, seen: float, rows: float) -> float:
    """Two-sided: whether k of n are more or fewer than `seen` of `rows` lead one to expect."""
    return min(1.0, 2 * min(at_least(k, n, seen, rows), at_least(n - k, n, rows - seen, rows)))


def counts_up_to(p: Floats, rate: float) -> float:
    """The p-value up to which tests count, so that of those that count a share of `rate` at most is by chance. Where
    nothing has changed, any counts with that probability at most.

    p: one a test. Source: Benjamini and Hochberg 1995.
    """
    within = np.sort(p) <= rate * np.arange(1, len(p) + 1) / len(p)
    counting = int(np.flatnonzero(within)[-1]) + 1 if within.any() else 1
    return rate * counting / len(p)
