"""Input drift: what is told of features that changed, once, and what isn't told of those that didn't."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.describing import described
from models.drift.answers import Answers
from models.drift.condition import Change
from models.drift.inputs import InputDrift, InputState
from models.reference import FeatureReference

Matrix = np.ndarray[Any, np.dtype[np.float32]]
NAMES = ("amount", "age", "country")


def answers(features: Matrix, at: int = 0, every_ms: int = 1000) -> Answers:
    n = len(features)
    return Answers(
        partition=np.zeros(n, np.int32),
        offset=np.arange(at, at + n),
        ts=np.arange(at, at + n) * every_ms,
        best=np.zeros(n, np.uint16),
        score=np.ones(n, np.float32),
        confidence=None,
        features=features.astype(np.float32),
    )


def stream(seed: int, n: int, shift: float = 0.0, foreign: float = 0.0, missing: float = 0.1) -> Matrix:
    """amount: log-normal; age: normal, some missing; country: 70 % the first, the rest the second, or unknown ones."""
    random = np.random.default_rng(seed)
    amount = np.exp(random.normal(shift, 1, n))
    age = np.where(random.random(n) < missing, np.nan, random.normal(40, 10, n))
    country = np.where(random.random(n) < foreign, -1.0, (random.random(n) > 0.7).astype(float))
    return np.stack((amount, age, country), axis=1).astype(np.float32)


@cache
def reference(seed: int = 0, rows: int = 20_000) -> dict[str, FeatureReference]:
    sample = stream(seed, rows)
    country = np.array(["ch", "de"])[sample[:, 2].astype(int)]
    return described({"amount": sample[:, 0].tolist(), "age": sample[:, 1].tolist(), "country": country.tolist()})


def folded(*parts: Matrix) -> tuple[InputDrift, list[Change]]:
    drift = InputDrift("churn@1", reference())
    return drift, drift.fold(answers(np.concatenate(parts)))


def told(change: Change) -> list[dict[str, Any]]:
    features: Any = change.evidence["features"]
    return list(features)


def test_a_stream_like_its_reference_is_never_told() -> None:
    drift, changes = folded(stream(1, 30_000))
    assert changes == []
    page = drift.page()
    assert page["windows"] == 30
    assert page["changed"] == []


def test_a_shift_of_half_a_deviation_is_told_once_and_its_end_too() -> None:
    _, changes = folded(stream(1, 5000), stream(2, 20_000, shift=0.5), stream(3, 5000))
    assert [(change.kind, change.subject, change.state, change.severity) for change in changes] == [
        ("input_drift", "churn@1", "opened", "warning"),
        ("input_drift", "churn@1", "resolved", "info"),
    ]
    opened, resolved = changes
    assert opened.source == "observations/0/6999"
    assert resolved.source == "observations/0/27999"
    assert opened.ts == 6_999_000
    assert opened.title == "churn@1: inputs no longer look like its reference: amount (19 points)"
    assert opened.evidence["changed"] == resolved.evidence["changed"] == ["amount"]


def test_the_evidence_is_what_a_person_needs() -> None:
    _, [opened] = folded(stream(2, 2000, shift=1.0))
    msgspec.json.encode(opened)
    [amount] = told(opened)
    assert amount["feature"] == "amount"
    assert amount["what"] == "distribution"
    assert amount["statistic"] == "kolmogorov-smirnov"
    assert amount["change"] == pytest.approx(0.383, abs=0.05)
    assert 0.06 < amount["critical"] < 0.1
    assert amount["p"] < 1e-20
    assert amount["median"]["reference"] == pytest.approx(1.0, abs=0.1)
    assert amount["median"]["window"] == pytest.approx(np.e, abs=0.4)
    histogram = amount["histogram"]
    assert len(histogram["edges"]) == len(histogram["window"]) + 1 == len(histogram["reference"]) + 1
    assert sum(histogram["window"]) == pytest.approx(1, abs=2e-3)
    assert sum(histogram["reference"]) == pytest.approx(1, abs=2e-3)
    assert 1 <= len(amount["examples"]) <= 5
    assert opened.evidence["window"] == {
        "first": 1_000_000,
        "last": 1_999_000,
        "from": "observations/0/1000",
        "to": "observations/0/1999",
        "answers": 1000,
    }


@pytest.mark.parametrize(
    ("what", "feature", "now"),
    [
        ("missing", "age", stream(2, 3000, missing=0.25)),
        ("missing", "age", stream(2, 3000, missing=0.0)),
        ("unseen", "country", stream(2, 3000, foreign=0.06)),
        ("out_of_range", "amount", np.where(np.arange(3000)[:, None] % 30 < 1, [[1e5, 40, 0]], stream(2, 3000))),
        ("distribution", "country", np.where(np.arange(3000)[:, None] % 10 < 2, [[1, 40, 1]], stream(2, 3000))),
    ],
)
def test_each_kind_of_change_is_named(what: str, feature: str, now: Matrix) -> None:
    _, changes = folded(stream(1, 2000), now)
    assert changes[0].state == "opened"
    found = {each["feature"]: each["what"] for each in told(changes[0])}
    assert found[feature] == what or (what == "unseen" and found[feature] == "distribution")
    assert feature in changes[0].title


def test_a_rare_category_that_grows_is_found() -> None:
    """Of 1,000 answers one had it; now fifty have."""
    random = np.random.default_rng(5)
    features = described({"kind": ["usual"] * 9990 + ["rare"] * 10})
    for share, told in ((0.001, []), (0.05, ["opened"])):
        drift = InputDrift("churn@1", features)
        rows = (random.random((10_000, 1)) < share).astype(np.float32)
        assert [change.state for change in drift.fold(answers(rows))] == told


def test_a_feature_that_dies_is_told_within_a_window() -> None:
    dead = stream(2, 1000)
    dead[:, 1] = np.nan
    _, changes = folded(stream(1, 2000), dead)
    assert [(change.state, change.evidence["changed"]) for change in changes] == [("opened", ["age"])]
    assert "age (90 points missing)" in changes[0].title


def test_more_features_that_change_later_make_it_worse_once() -> None:
    later = stream(3, 6000, shift=0.5)
    later[:, 1] += 8
    _, changes = folded(stream(2, 4000, shift=0.5), later)
    assert [change.state for change in changes] == ["opened", "worsened"]
    assert changes[1].evidence["changed"] == ["age", "amount"]


def test_a_slow_model_is_looked_at_within_weeks() -> None:
    drift = InputDrift("churn@1", reference())
    day = 86_400_000
    changes = drift.fold(answers(stream(2, 1000, shift=1.0), every_ms=day // 30))
    assert drift.page()["windows"] == 4  # 211 answers are those of a week, and the first after it
    assert [change.state for change in changes if not change.reminder] == ["opened"]
    drift = InputDrift("churn@1", reference())
    drift.fold(answers(stream(2, 3000), every_ms=day // 600))
    assert drift.page()["windows"] == 4  # 601 are a day's


def test_values_that_come_in_runs_count_for_what_they_are_worth() -> None:
    """Sessions of 40 events whose customer has one age: a window knows 25 customers, not 1,000."""
    random = np.random.default_rng(7)
    calm = stream(7, 80_000)
    calm[:, 1] = np.repeat(random.normal(40, 10, 2000), 40)
    calm[:, 2] = np.repeat((random.random(2000) > 0.7).astype(float), 40)
    drift, changes = folded(calm)
    assert changes == []
    features: Any = drift.page()["features"]
    alike = [each.get("alike", 1) for each in features]
    assert alike[0] < 2
    assert alike[1] > 8


def test_answers_without_features_change_nothing() -> None:
    drift = InputDrift("churn@1", reference())
    before = msgspec.msgpack.encode(drift.state)
    some = answers(stream(1, 10))
    without = Answers(some.partition, some.offset, some.ts, some.best, some.score, None, None)
    assert drift.fold(without) == []
    assert drift.fold(some.take(slice(0))) == []
    assert msgspec.msgpack.encode(drift.state) == before


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(0, 4200), max_size=8), every_ms=st.sampled_from([10, 1_000_000]))
def test_neither_cuts_nor_msgpack_change_anything(cuts: list[int], every_ms: int) -> None:
    rows = np.concatenate((stream(1, 1300), stream(2, 2900, shift=0.7)))
    whole = InputDrift("churn@1", reference())
    expected = whole.fold(answers(rows, every_ms=every_ms))
    assert expected
    state, changes = InputState(), []
    for first, last in zip([0, *sorted(cuts)], [*sorted(cuts), len(rows)], strict=True):
        part = InputDrift("churn@1", reference(), state)
        changes += part.fold(answers(rows, every_ms=every_ms).take(slice(first, last)))
        state = msgspec.msgpack.decode(msgspec.msgpack.encode(part.state), type=InputState)
    assert changes == expected
    assert state == whole.state


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_whatever_comes_is_counted_without_harm(data: st.DataObject) -> None:
    odd = st.sampled_from([np.nan, np.inf, -np.inf, -1.0, 1e30, 0.5, 3.0, 1e9])
    seed = data.draw(st.integers(0, 99))
    rows = stream(seed, 2000)
    for column in range(3):
        rows[: data.draw(st.integers(0, 2000)), column] = data.draw(odd)
    drift = InputDrift("churn@1", reference(rows=50))
    for change in drift.fold(answers(rows)):
        msgspec.json.encode(change)
    assert b"NaN" not in msgspec.json.encode(drift.page())
    assert drift.page()["windows"] == 2


@pytest.mark.parametrize("column", [[5.0], [5.0] * 300, [0.0, 1.0] * 50, [float(i) for i in range(2000)]])
def test_any_reference_can_be_compared_with_itself(column: list[float]) -> None:
    drift = InputDrift("churn@1", described({"x": column, "same": [1.0] * len(column)}))
    rows = np.stack((np.random.default_rng(1).choice(column, 5000), np.ones(5000)), axis=1)
    assert drift.fold(answers(rows)) == []
    msgspec.json.encode(drift.page())


def test_thirty_features_take_a_few_kilobytes() -> None:
    random = np.random.default_rng(1)
    sample = random.normal(size=(5000, 30)).astype(np.float32)
    drift = InputDrift("churn@1", described({f"f{i}": sample[:, i].tolist() for i in range(30)}))
    drift.fold(answers(sample[:1950]))
    assert len(msgspec.msgpack.encode(drift.state)) < 15_000
