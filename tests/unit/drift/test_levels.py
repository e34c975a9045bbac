"""How sure a version ought to be at least: what is usual for it, or the classic numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from models.drift.batch import Batch
from models.drift.levels import LevelRules, LevelState, levels
from models.drift.monitor import Monitor
from models.drift.spec import Spec
from tests.unit.drift.streams import answers, beta, number, told

CLASSIC = Spec(name="churn", version="3", labels=("no", "yes"), preset="classic")


def spec(*levels_: tuple[float, int], spread: float = 20, low: float = 0.7) -> Spec:
    sample = tuple(sorted(beta(np.random.default_rng(9), *levels_, spread=spread).tolist()))
    return Spec(name="churn", version="3", labels=("no", "yes"), reference_confidence=sample, low_confidence=low)


def test_the_share_of_low_confidence_is_a_warning_at_8_and_critical_at_20_percent() -> None:
    values = np.full(6000, 0.9)
    values[1000:3000][::10] = 0.5  # 10 %
    values[3000:4000][::4] = 0.5  # 25 %
    said = [one for one in told(Monitor(CLASSIC), answers(values)) if one.kind == "low_confidence_share"]
    assert [(one.state, one.severity, number(one)) for one in said] == [
        ("opened", "warning", 1799),
        ("worsened", "critical", 3799),
        ("resolved", "info", 5599),
    ]
    assert said[0].title == "8.0% of the last 1,000 answers of churn@3 have low confidence"
    assert said[0].evidence["thresholds"] == {"warning": 0.08, "critical": 0.2}


def test_a_mean_below_075_for_two_minutes_is_a_warning_and_below_065_critical() -> None:
    values = np.concatenate((np.full(3000, 0.8), np.full(3000, 0.7), np.full(3000, 0.6), np.full(3000, 0.8)))
    said = [one for one in told(Monitor(CLASSIC), answers(values, apart_ms=100)) if one.kind == "low_confidence_mean"]
    assert [(one.state, one.severity) for one in said] == [
        ("opened", "warning"),
        ("worsened", "critical"),
        ("resolved", "info"),
    ]
    delays = [number(one) - begun for one, begun in zip(said, (3000, 6000, 9000), strict=True)]
    assert min(delays[:2]) >= 1100
    assert max(delays[:2]) <= 1320
    assert delays[2] <= 620
    assert said[0].title.startswith("Mean confidence of churn@3 is 0.700, below 0.750 for 12")


def test_a_dip_of_a_minute_is_no_news() -> None:
    values = np.concatenate((np.full(3000, 0.8), np.full(600, 0.5), np.full(3000, 0.8)))
    said = told(Monitor(CLASSIC), answers(values, apart_ms=100))
    assert "low_confidence_mean" not in {one.kind for one in said}


def test_ten_records_a_day_say_it_with_the_next_500() -> None:
    values = np.repeat([0.9, 0.5], 1500)
    said = told(Monitor(CLASSIC), answers(values, apart_ms=8_640_000))
    first = next(one for one in said if one.kind == "low_confidence_mean")
    assert number(first) - 1500 < 600


def test_ten_thousand_records_a_second_say_it_after_two_minutes() -> None:
    rules = LevelRules(CLASSIC, LevelState(), None)
    said = []
    for first in range(0, 1_600_000, 8000):
        values = np.full(8000, 0.9 if first < 160_000 else 0.5, np.float32)
        given = answers(values, ts=(first + np.arange(8000)) // 10)
        said += [change for _, change in rules.fold(Batch.of(given, values, first), None)]
    opened = next(one for one in said if one.kind == "low_confidence_mean")
    assert 110_000 <= opened.ts - 16_000 <= 140_000


def test_one_event_from_the_future_stops_nothing() -> None:
    values = np.repeat([0.9, 0.5], 3000)
    given = answers(values, apart_ms=100)
    given.ts[2950] = 10**14
    assert "low_confidence_mean" in {one.kind for one in told(Monitor(CLASSIC), given)}


def test_low_is_what_only_4_percent_of_the_sample_are_below() -> None:
    unsure = spec((0.5, 2000))
    held = levels(unsure, None)
    assert held is not None
    assert held.basis == "manifest"
    assert held.low == pytest.approx(np.quantile(unsure.reference_confidence, 0.04) - 0.02, abs=1e-3)
    assert held.share == (0.08, 0.2)
    assert list(held.mean) == pytest.approx([0.45, 0.35], abs=0.003)
    assert not told(Monitor(unsure), answers(beta(np.random.default_rng(1), (0.5, 20_000)), apart_ms=100))


def test_a_sure_version_is_held_to_the_classic_numbers() -> None:
    held = levels(spec((0.95, 2000)), None)
    assert held is not None
    assert (held.low, held.share, held.mean) == (0.7, (0.08, 0.2), (0.75, 0.65))


def test_a_version_that_is_worse_than_its_sample_from_the_start_is_found_before_it_has_a_reference() -> None:
    said = told(Monitor(spec((0.85, 2000))), answers(beta(np.random.default_rng(1), (0.6, 1900)), apart_ms=500))
    assert {(one.kind, one.state) for one in said} >= {
        ("low_confidence_mean", "worsened"),
        ("low_confidence_share", "worsened"),
    } or {one.kind for one in said if one.severity == "critical"} >= {"low_confidence_mean", "low_confidence_share"}


def test_without_a_sample_its_own_first_answers_tell_what_is_usual() -> None:
    monitor = Monitor(Spec(name="churn", version="3", labels=("no", "yes")))
    rng = np.random.default_rng(1)
    assert not told(monitor, answers(beta(rng, (0.5, 10_000)), apart_ms=100))
    page: Any = monitor.page()["levels"]
    assert page["held_to"]["basis"] == "first"
    later = answers(beta(rng, (0.3, 4000)), apart_ms=100)
    later.ts[:] += 1_000_000
    said = {one.kind for one in told(monitor, later)}
    assert {"low_confidence_mean", "low_confidence_share"} <= said


def test_scores_that_are_all_the_same_may_move_a_little() -> None:
    same = Spec(name="churn", version="3", labels=("no", "yes"), reference_confidence=(0.5,) * 500)
    assert not told(Monitor(same), answers(np.full(9000, 0.49), apart_ms=100))
