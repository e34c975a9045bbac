"""Several rankings to one, by their ranks alone: scores of different kinds can't be compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

K: Final = 60
"""Cormack, Clarke, Buettcher: Reciprocal Rank Fusion, SIGIR 2009."""
DENSE: Final = 1.0
LEXICAL: Final = 2.0
"""What a place in each ranking counts; docs/knowledge.md has what led to it."""


def fused(*rankings: tuple[float, Sequence[int]], k: int = K) -> dict[int, float]:
    """Passage -> sum of weight / (k + rank) over the rankings (weight, passages, best first) that have it."""
    scores: dict[int, float] = defaultdict(float)
    for weight, ranking in rankings:
        for rank, passage in enumerate(ranking, start=1):
            scores[passage] += weight / (k + rank)
    return dict(scores)
