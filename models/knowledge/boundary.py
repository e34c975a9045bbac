"""From which similarity on an answer may be given again: learnt for each answer by itself, within a user's bound.

The method is that of vCache (Schroeder et al.: vCache: Verified Semantic Prompt Caching, 2025, arXiv 2502.03771). Each
answer has a logistic model of the chance that it is right for a question of similarity s: 1 / (1 + exp(-g (s - t))).
Its threshold t and slope g are learnt from questions for which the real answer was made all the same. As long as little
is known of them, the chance is taken for as low as it may well be, and most questions are answered anew, which teaches
more. Where the paper bounds t by a normal approximation, the posterior of t and g on a grid does it here: it is defined
from the first observation on, also where right and wrong don't overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

NEAR: Final = 0.80
"""Cosine from which on another question is looked at; what is farther has an answer of its own."""
LONGEST: Final = 500
"""Characters of a question that is similar to any: of a longer one the vector may tell the beginning alone."""
OBSERVED: Final = 8
"""Real answers that are compared with one before it is given again: until then all is shadow."""
CHECKED: Final = 0.02
"""Share of the questions that are answered anew however sure the model is, so that what it does can still be told."""
_THRESHOLDS: Final = np.linspace(0.5, 1.5, 41)
"""Beyond 1: an answer that is nobody else's."""
_SLOPES: Final = np.geomspace(5.0, 500.0, 10)
_T, _G = (grid.ravel() for grid in np.meshgrid(_THRESHOLDS, _SLOPES))


class Observation(NamedTuple):
    """A question whose real answer is known."""

    similarity: float
    right: bool
    """Whether the kept answer was the same."""


class Decision(NamedTuple):
    """What becomes of a question that is similar to an answered one."""

    reuse: bool
    """Whether it gets that answer."""
    would: bool
    """Whether it would, were there neither shadow nor check."""


def least_chance(observed: Sequence[Observation], similarity: float) -> float:
    """What the chance that the answer is right may be taken for: the largest (1 - e) q, where the chance is q or more
    with probability 1 - e by all that was observed. In [0, 1]; flat priors over t and the logarithm of g."""
    fit = np.zeros(len(_T))
    if observed:
        at = np.array([one.similarity for one in observed])
        sign = np.array([1.0 if one.right else -1.0 for one in observed])
        fit = -_softplus(-sign * _G[:, None] * (at - _T[:, None])).sum(axis=1)
    weight = np.exp(fit - fit.max())
    chance = np.exp(-_softplus(-_G * (similarity - _T)))
    order = np.argsort(chance)
    above = np.cumsum(weight[order][::-1])[::-1] / weight.sum()
    return float(np.minimum(1.0, above * chance[order]).max())


def exploration(chance: float, error: float) -> float:
    """Share of such questions that must be answered anew so that at most `error` of them get a wrong answer.

    Of those that are not, 1 - chance are wrong at most: (1 - share) (1 - chance) <= error. chance .9, error .05: .5.
    """
    return max(0.0, 1 - error / (1 - chance)) if chance < 1 else 0.0


def decided(observed: Sequence[Observation], similarity: float, error: float, source: str) -> Decision:
    """error: the user's bound, within (0, 1). source: where the message stands. Its hash draws the lots: the same
    message with the same observations is decided in the same way, also after a crash."""
    first, second = _lots(source)
    would = first >= exploration(least_chance(observed, similarity), error)
    return Decision(would and len(observed) >= OBSERVED and second >= CHECKED, would)


def _lots(source: str) -> tuple[float, float]:
    """Two numbers in [0, 1)."""
    drawn = blake2b(source.encode("utf-8", "surrogatepass"), digest_size=16, person=b"similar answer").digest()
    return int.from_bytes(drawn[:8]) / 2**64, int.from_bytes(drawn[8:]) / 2**64


def _softplus(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.logaddexp(0.0, x)
