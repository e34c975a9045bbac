"""How sure a version was, as sums."""

from __future__ import annotations

import numpy as np

from models.scores import Scores
from models.sureness import Sureness


def scores(*confidences: float) -> Scores:
    n = len(confidences)
    return Scores(
        labels=("yes", "no"),
        matrix=np.zeros((n, 2), np.float32),
        best=np.zeros(n, np.intp),
        confidence=np.array(confidences, np.float32) if n else None,
        low_confidence=np.array(confidences, np.float32) < 0.5,
        decision=None,
        broken=np.empty(0, np.intp),
    )


def test_sums_tell_what_came_between_any_two_of_them() -> None:
    first = Sureness().and_of(scores(0.25, 0.75))
    second = first.and_of(scores(0.5)).and_of(scores(0.125))
    assert first == Sureness(2, 1.0, 1)
    assert second.since(first) == Sureness(2, 0.625, 1)
    assert second.since(None) == second


def test_another_load_of_the_version_counts_from_nothing() -> None:
    assert Sureness(3, 1.5, 0).since(Sureness(10, 9.0, 0)) == Sureness(3, 1.5, 0)


def test_a_regressor_without_an_interval_is_neither_sure_nor_unsure() -> None:
    assert Sureness(1, 0.5, 0).and_of(scores()) == Sureness(1, 0.5, 0)
