"""Feedback joined to answers: however both arrive, the outcomes add up to those of a join made afterwards."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from core.errors import FeedbackError
from models import joining
from models.joining import MOST_TOLD, Fate, Judged
from models.remembered import MOST_SCORES, Answer, Asked, Remembered, Told, packed

HORIZON = 100
CHURN = Asked("churn", "1", "active", ("no", "yes"), HORIZON, {"click": ("yes", None), "dwell": ("yes", 30.0)})
NEWER = Asked("churn", "2", "canary", ("no", "yes"), HORIZON, {})
PRICE = Asked("price", "1", "active", (), HORIZON, {})
KNOWN = {one.reference: one for one in (CHURN, NEWER, PRICE)}


def answer(asked: Asked, ts: int = 0, offset: int = 1, scores: Sequence[float] = (0.25, 0.75)) -> Answer:
    return Answer(asked.reference, ts, 0, offset, np.array(scores, "<f4").tobytes())


def told(
    id: str, label: str | None = "yes", type: str = "label", ts: int = 1, score: float | None = None,
    model: str | None = None,
) -> Told:  # fmt: skip
    return Told(type, id, ts, 7, label, score, model)


class Events:
    """What a table would hold, and the sum of all outcomes."""

    def __init__(self) -> None:
        self.memory: dict[str, Remembered] = {}
        self.sums: Counter[tuple[str, str, int | float]] = Counter()
        self.fates: list[Fate] = []
        self.refused: list[tuple[str, Fate]] = []

    def take(self, event: str, one: Answer | Told) -> None:
        before = self.memory.get(event)
        try:
            step = (
                joining.answer(before, one, KNOWN)
                if isinstance(one, Answer)
                else joining.tell(before, one, KNOWN, HORIZON)
            )
        except FeedbackError:
            self.fates.append(Fate.REFUSED)
            return
        self.fates += step.fates
        self.refused += [(refused.told.id, refused.fate) for refused in step.refused]
        if step.memory is not None:
            self.memory[event] = step.memory
        for judged in step.judged:
            self.sums[_what(judged)] += judged.outcome.weight

    @property
    def true(self) -> dict[tuple[str, str, int | float], int]:
        return {what: weight for what, weight in self.sums.items() if weight}


def _what(one: Judged) -> tuple[str, str, int | float]:
    truth = one.outcome.label if one.outcome.truth is None else one.outcome.truth
    return one.asked.identity, one.outcome.source, truth


def afterwards(arrived: Sequence[tuple[str, Answer | Told]]) -> dict[tuple[str, str, int | float], int]:
    """The join in plain words: each model's first answer, and of what was said of it in time the highest word."""
    found = {}
    for event in {event for event, _ in arrived}:
        ours = [one for name, one in arrived if name == event]
        said = {one.id: one for one in ours if isinstance(one, Told)}.values()
        models: dict[str, Answer] = {}
        for one in ours:
            if isinstance(one, Answer):
                models.setdefault(KNOWN[one.asked].model, one)
        for model, first in models.items():
            asked = KNOWN[first.asked]
            words = []
            for one in said:
                if one.ts > first.ts + asked.horizon or one.model not in (None, model):
                    continue
                signal = one.type not in ("label", "correction")
                if signal:
                    label, least = asked.signals.get(one.type, (None, None))
                    if label is None or (least is not None and (one.score is None or one.score < least)):
                        continue
                else:
                    label = one.label
                truth = one.score if not asked.labels else asked.labels.index(str(label))
                words.append((0 if signal else 2 if one.type == "correction" else 1, one.ts, one.id, truth))
            if words:
                found[asked.identity, f"observations/0/{first.offset}", max(words)[-1]] = 1
    return found  # type: ignore[return-value]


FEEDBACK = st.builds(
    Told,
    type=st.sampled_from(["label", "label", "correction", "click", "dwell", "view"]),
    id=st.just(""),
    ts=st.integers(-50, 250),
    offset=st.just(7),
    label=st.sampled_from(["no", "yes"]),
    score=st.sampled_from([None, 10.0, 30.0, 77.5]),
    model=st.sampled_from([None, "churn"]),
)


@st.composite
def arrivals(draw: st.DrawFn) -> list[tuple[str, Answer | Told]]:
    """Answers in the order of their partition, some of them twice; feedback anywhere, some of it twice or more."""
    answers: list[tuple[str, Answer | Told]] = []
    feedback: list[tuple[str, Answer | Told]] = []
    for n in range(draw(st.integers(1, 4))):
        event = f"e{n}"
        for again in range(draw(st.integers(0, 2))):
            asked = draw(st.sampled_from([CHURN, NEWER]))
            answers.append((event, answer(asked, draw(st.integers(0, 100)), 10 * n + again)))
        for number, one in enumerate(draw(st.lists(FEEDBACK, max_size=6))):
            named = Told(one.type, f"f{number}", one.ts, 7, one.label, one.score, one.model)
            feedback += [(event, named)] * draw(st.integers(1, 3))
    order = draw(st.permutations([*("a" * len(answers)), *feedback]))
    left = iter(answers)
    return [next(left) if one == "a" else one for one in order]


@settings(max_examples=150, deadline=None)
@given(arrivals())
def test_outcomes_add_up_to_the_join_that_is_made_afterwards(arrived: list[tuple[str, Answer | Told]]) -> None:
    events = Events()
    for event, one in arrived:
        events.take(event, one)
    assert events.true == afterwards(arrived)


@settings(max_examples=40, deadline=None)
@given(st.lists(FEEDBACK, min_size=MOST_TOLD, max_size=3 * MOST_TOLD), st.randoms(use_true_random=False))
def test_however_much_is_said_of_an_event_what_is_kept_is_bounded_and_the_truth_is_not_lost(
    said: list[Told], random: object
) -> None:
    named: list[tuple[str, Answer | Told]] = [
        ("e", Told(one.type, f"f{n}", one.ts, 7, one.label, one.score, one.model))
        for n, one in enumerate(said)
        if one.type != "dwell"  # a weak one may come to stand for a strong one of its kind
    ]
    arrived = [*named, ("e", answer(CHURN))]
    random.shuffle(arrived)  # type: ignore[attr-defined]
    events = Events()
    for event, one in arrived:
        events.take(event, one)
    assert events.true == afterwards(arrived)
    assert len(events.memory["e"].told) <= MOST_TOLD


def test_a_correction_of_a_correction_leaves_one_label() -> None:
    events = Events()
    for one in (
        answer(CHURN),
        told("a", "no", ts=5),
        told("b", "yes", "correction", ts=6),
        told("c", "no", "correction", ts=9),
        told("b", "yes", "correction", ts=6),
        told("d", "yes", ts=20),
    ):
        events.take("e", one)
    assert events.true == {("churn@1", "observations/0/1", 0): 1}
    assert events.fates == [Fate.JOINED, Fate.CORRECTED, Fate.CORRECTED, Fate.REPEATED, Fate.OVERRULED]


def test_a_signal_means_what_the_manifest_says_and_a_label_says_more() -> None:
    events = Events()
    events.take("e", answer(CHURN))
    for one, fate in (
        (told("a", None, "view"), Fate.SIGNAL),
        (told("b", None, "dwell", score=29.0), Fate.SIGNAL),
        (told("c", None, "dwell", score=30.0), Fate.JOINED),
        (told("d", None, "click"), Fate.CONFIRMED),
        (told("e", "no"), Fate.CORRECTED),
    ):
        events.take("e", one)
        assert events.fates[-1] is fate
    assert events.true == {("churn@1", "observations/0/1", 0): 1}


def test_what_the_version_can_not_have_answered_is_refused_now_or_once_it_has_waited() -> None:
    with pytest.raises(FeedbackError, match="churn@1 has no label 'maybe'; it has no, yes"):
        joining.tell(Remembered(100, (answer(CHURN),)), told("a", "maybe"), KNOWN, HORIZON)
    with pytest.raises(FeedbackError, match="price@1 answers with a value: send the true one as score"):
        joining.tell(Remembered(100, (answer(PRICE),)), told("a", "yes"), KNOWN, HORIZON)
    events = Events()
    for one in (told("a", "maybe"), told("b", ts=HORIZON + 1), told("c"), answer(CHURN)):
        events.take("e", one)
    assert events.refused == [("b", Fate.LATE), ("a", Fate.REFUSED)]
    assert [one.id for one in events.memory["e"].told] == ["c"]
    assert events.true == {("churn@1", "observations/0/1", 1): 1}


def test_feedback_is_about_the_model_that_it_names_or_about_all() -> None:
    events = Events()
    events.take("e", answer(CHURN))
    events.take("e", answer(PRICE, offset=2, scores=[12.5]))
    events.take("e", told("a", None, score=12.4, model="price"))
    assert events.true == {("price@1", "observations/0/2", 12.4): 1}
    events.take("e", told("b", "yes"))
    assert events.true == {("price@1", "observations/0/2", 12.4): 1, ("churn@1", "observations/0/1", 1): 1}
    events.take("e", told("c", "yes", model="spam"))
    assert events.fates[-1] is Fate.WAITS


def test_nothing_waits_where_nobody_would_ask() -> None:
    assert joining.tell(None, told("a"), KNOWN, None).fates == (Fate.UNASKED,)


@pytest.mark.parametrize(
    ("scores", "label", "right", "loss"),
    [((0.25, 0.75), "yes", True, -math.log(0.75)), ((1.0, 0.0), "yes", False, -math.log(1e-15))],
)
def test_an_outcome_says_whether_it_was_right_and_what_it_cost(
    scores: tuple[float, ...], label: str, right: bool, loss: float
) -> None:
    [one] = joining.tell(Remembered(9, (answer(CHURN, scores=scores),)), told("a", label), KNOWN, None).judged
    assert (one.right, one.outcome.scores, one.outcome.weight) == (right, scores, 1)
    assert one.loss == pytest.approx(loss)


def test_a_regressor_is_right_within_a_hundredth() -> None:
    for value, right in ((100.9, True), (101.1, False)):
        memory = Remembered(9, (answer(PRICE, scores=[value]),))
        [one] = joining.tell(memory, told("a", None, score=100.0), KNOWN, None).judged
        assert (one.right, one.outcome.truth) == (right, 100.0)
        assert one.loss == pytest.approx((value - 100) ** 2, rel=1e-4)


@given(st.integers(MOST_SCORES + 1, 1000), st.integers(0, 2**32 - 1))
@example(1000, 0)
def test_of_many_labels_the_largest_scores_are_kept_and_the_others_share_what_is_left(labels: int, seed: int) -> None:
    matrix = np.random.default_rng(seed).dirichlet(np.ones(labels), 3).astype(np.float32)
    for row, (scores, places) in zip(matrix, packed(matrix), strict=True):
        kept = Answer("", 0, 0, 0, scores, places).matrix(labels)
        whose = np.frombuffer(places, "<u2")
        assert len(scores) + len(places) == 6 * MOST_SCORES
        assert kept.argmax() == row.argmax() == whose[0]
        np.testing.assert_array_equal(kept[whose], row[whose])
        assert row[whose].min() >= np.delete(row, whose).max()
        assert kept.sum() == pytest.approx(1, abs=1e-3)
