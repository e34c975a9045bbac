"""The bound of similar answers, for many of them and for small errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.knowledge.test_boundary import Answer, Dice, logistic, near_misses, personal, shared, simulated


@pytest.mark.long
@pytest.mark.parametrize("error", [0.02, 0.05, 0.2])
@pytest.mark.parametrize("kind", [logistic, near_misses, personal, shared])
def test_the_bound_holds_for_many_answers(kind: Callable[[Dice], Answer], error: float) -> None:
    wrong, _ = simulated(kind, error, answers=60, asked=150)
    assert wrong <= error + 3 * (error * (1 - error) / 9_000) ** 0.5
