"""A learned boundary keeps a user's bound, whatever the answers are like, and is of use where they allow it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.knowledge.boundary import NEAR, OBSERVED, Observation, decided, exploration, least_chance

Dice = np.random.Generator
Answer = Callable[[Dice, float], bool]
"""Whether a kept answer is right for a question of some similarity."""


def logistic(dice: Dice) -> Answer:
    """As the model has it."""
    threshold, slope = dice.uniform(0.75, 1.05), dice.uniform(10, 200)
    return lambda d, s: bool(d.random() < 1 / (1 + np.exp(-slope * (s - threshold))))


def near_misses(dice: Dice) -> Answer:
    """Paraphrases are right however far they are, and half of the nearest questions are negations."""
    return lambda d, s: bool(s < 0.95 or d.random() < 0.5)


def personal(dice: Dice) -> Answer:
    """Never right for anybody else."""
    return lambda d, s: False


def shared(dice: Dice) -> Answer:
    """Always right."""
    return lambda d, s: True


def turning(dice: Dice) -> Answer:
    """Right for the first ones, which are all that the shadow sees, and seldom from then on."""
    seen = iter(range(10**9))
    return lambda d, s: next(seen) < OBSERVED or bool(d.random() < 0.3)


def simulated(
    kind: Callable[[Dice], Answer], error: float, answers: int, asked: int, since: int = 0
) -> tuple[float, float]:
    """Shares of wrong and of reused answers among all questions from so many on. What is reused teaches nothing."""
    wrong = reused = 0
    for number in range(answers):
        dice = np.random.default_rng(number)
        answer, observed = kind(dice), list[Observation]()
        for question in range(asked):
            similarity = float(dice.uniform(NEAR, 1.0))
            right = answer(dice, similarity)
            if decided(observed, similarity, error, f"messages/{number}/{question}").reuse:
                reused += question >= since
                wrong += question >= since and not right
            else:
                observed.append(Observation(similarity, right))
    return wrong / (answers * (asked - since)), reused / (answers * (asked - since))


@pytest.mark.parametrize("kind", [logistic, near_misses, personal, shared])
def test_no_more_answers_are_wrong_than_the_user_allows(kind: Callable[[Dice], Answer]) -> None:
    answers, asked, error = 8, 80, 0.1
    wrong, reused = simulated(kind, error, answers, asked)
    assert wrong <= error + 3 * (error * (1 - error) / (answers * asked)) ** 0.5
    assert kind is not shared or reused > 0.5, "and what is right for all is made once"


def test_answers_that_are_right_no_more_are_found_out() -> None:
    """The bound is for answers that stay as they are: the first ones behind a turn may cost more."""
    answers, error = 5, 0.1
    wrong, _ = simulated(turning, error, answers, asked=140, since=70)
    assert wrong <= error + 3 * (error * (1 - error) / (answers * 70)) ** 0.5


def test_until_enough_real_answers_were_compared_all_is_shadow() -> None:
    sure = [Observation(1.0, True)] * 200
    few, enough = sure[: OBSERVED - 1], sure[:OBSERVED]
    sources = [f"messages/0/{n}" for n in range(150)]
    assert not any(decided(few, 1.0, 0.5, source).reuse for source in sources)
    assert any(decided(few, 1.0, 0.5, source).would for source in sources), "but what it would have done is known"
    assert any(decided(enough, 1.0, 0.5, source).reuse for source in sources)
    checked = [decided(sure, 1.0, 0.5, source).reuse for source in sources].count(False)
    assert 0 < checked < 12, "and some are checked for ever"


def test_the_same_message_is_decided_in_the_same_way_again() -> None:
    seen = [Observation(0.9, True)] * OBSERVED
    first = [decided(seen, 0.92, 0.1, f"messages/0/{n}") for n in range(50)]
    assert [decided(list(seen), 0.92, 0.1, f"messages/0/{n}") for n in range(50)] == first
    assert len(set(first)) > 1


def test_the_share_that_is_answered_anew_is_that_of_the_formula() -> None:
    assert exploration(0.9, 0.05) == pytest.approx(0.5)
    assert exploration(0.95, 0.05) == pytest.approx(0.0)
    assert exploration(0.0, 0.05) == pytest.approx(0.95)
    assert exploration(1.0, 0.05) == 0.0


observations = st.lists(st.builds(Observation, st.floats(NEAR, 1.0), st.booleans()), max_size=12)


@settings(max_examples=50)
@given(observed=observations, low=st.floats(NEAR, 1.0), high=st.floats(NEAR, 1.0))
def test_what_is_more_similar_is_no_less_likely_right(observed: list[Observation], low: float, high: float) -> None:
    low, high = sorted((low, high))
    assert 0 <= least_chance(observed, low) <= least_chance(observed, high) + 1e-9 <= 1 + 1e-9


@settings(max_examples=50)
@given(observed=observations, at=st.floats(NEAR, 1.0))
def test_a_wrong_answer_makes_it_less_likely(observed: list[Observation], at: float) -> None:
    before = least_chance(observed, at)
    assert least_chance([*observed, Observation(at, False)], at) <= before + 1e-9
