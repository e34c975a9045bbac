"""Expected performance: right where probabilities are true, and a warning where they promise less."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from models.drift.answers import Answers
from models.drift.expected import ExpectedPerformance, ExpectedState


def answers(second: Any, at: int = 0) -> Answers:
    """second: (n,) the second label's probabilities."""
    n = len(second)
    return Answers(
        partition=np.zeros(n, np.int32),
        offset=np.arange(at, at + n),
        ts=np.arange(at, at + n) * 1000,
        best=(second > 0.5).astype(np.uint16),
        score=np.maximum(second, 1 - second).astype(np.float32),
        confidence=None,
        features=None,
    )


def drawn(seed: int, n: int, steep: float = 2.0, alike: float = 0.0) -> Any:
    """Probabilities; alike: how much one's log odds are those of the one before."""
    random = np.random.default_rng(seed)
    noise = random.normal(size=n)
    if alike:
        for i in range(1, n):
            noise[i] = alike * noise[i - 1] + np.sqrt(1 - alike * alike) * noise[i]
    return 1 / (1 + np.exp(-steep * noise))


@pytest.mark.parametrize("steep", [0.5, 2.0, 5.0])
def test_what_is_expected_of_true_probabilities_comes_true(steep: float) -> None:
    p = drawn(1, 20_000, steep)
    drift = ExpectedPerformance("churn@1", 2)
    drift.fold(answers(p[:1000]))
    page: Any = drift.page()
    assert page["estimated"]
    assert page["newest"]["accuracy"] == pytest.approx(np.maximum(p, 1 - p)[:1000].mean(), abs=1e-4)
    truth = np.random.default_rng(2).random(20_000) < p
    assert page["newest"]["accuracy"] == pytest.approx(((p > 0.5) == truth).mean(), abs=0.02)
    assert page["newest"]["auc"] == pytest.approx(roc_auc_score(truth, p), abs=0.025)


@pytest.mark.parametrize("alike", [0.0, 0.9])
def test_answers_as_sure_as_at_first_are_no_reason_to_warn(alike: float) -> None:
    assert ExpectedPerformance("churn@1", 2).fold(answers(drawn(3, 40_000, 2.0, alike))) == []


def test_less_that_is_promised_is_a_warning_and_its_end_is_told() -> None:
    p = np.concatenate((drawn(1, 5000), drawn(2, 5000, 1.0), drawn(3, 5000)))
    changes = ExpectedPerformance("churn@1", 2).fold(answers(p))
    assert [(change.kind, change.state, change.severity, change.source) for change in changes] == [
        ("performance_expected", "opened", "warning", "observations/0/6999"),
        ("performance_expected", "resolved", "info", "observations/0/12999"),
    ]
    assert changes[0].evidence["estimated"]
    msgspec.json.encode(changes)
    assert "promise less" in changes[0].title


def test_more_that_is_promised_is_fine() -> None:
    p = np.concatenate((drawn(1, 5000, 1.0), drawn(2, 20_000, 3.0)))
    assert ExpectedPerformance("churn@1", 2).fold(answers(p)) == []


@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(0, 6000), max_size=8), labels=st.sampled_from([2, 5]))
def test_neither_cuts_nor_msgpack_change_anything(cuts: list[int], labels: int) -> None:
    p = np.concatenate((drawn(1, 2500), drawn(2, 3500, 0.7)))
    p[::97] = np.nan
    given_ = answers(p)
    whole = ExpectedPerformance("churn@1", labels)
    expected = whole.fold(given_)
    assert expected
    state, changes = ExpectedState(), []
    for first, last in zip([0, *sorted(cuts)], [*sorted(cuts), len(p)], strict=True):
        part = ExpectedPerformance("churn@1", labels, state)
        changes += part.fold(given_.take(slice(first, last)))
        encoded = msgspec.msgpack.encode(part.state)
        assert len(encoded) < 2000
        state = msgspec.msgpack.decode(encoded, type=ExpectedState)
    assert changes == expected
    assert state == whole.state
    assert b"NaN" not in msgspec.json.encode(whole.page())
