"""Performance drift: late labels judged by event time, corrections seen, and one alert for one change."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.drift.outcomes import Outcome
from models.drift.performance import PerformanceDrift, PerformanceState
from models.drift.windows import KEPT
from models.quality import Performance, Quality

HOUR = 3_600_000
DAY = 24 * HOUR


def labelled(
    seed: int, n: int, first: int = 0, every_ms: int = 10_000, wrong: float = 0.0, odds: float = 0.0
) -> list[Outcome]:
    """Calibrated answers to two labels; a share of the truths is turned around. odds: log odds in the middle."""
    random = np.random.default_rng(seed)
    p = 1 / (1 + np.exp(-random.normal(odds, 2, size=n)))
    truth = (random.random(n) < p) ^ (random.random(n) < wrong)
    return [
        Outcome(first + i * every_ms, f"observations/0/{first // every_ms + i}", int(t), (1 - q, q))
        for i, (q, t) in enumerate(zip(p.tolist(), truth.tolist(), strict=True))
    ]


def measured(seed: int, n: int, first: int = 0, off: float = 0.0, spread: float = 1.0) -> list[Outcome]:
    random = np.random.default_rng(seed)
    truth = random.normal(size=n)
    value = truth + off + random.normal(scale=spread, size=n)
    rows = zip(value.tolist(), truth.tolist(), strict=True)
    return [Outcome(first + i * 10_000, f"observations/0/{i}", 0, (v,), t) for i, (v, t) in enumerate(rows)]


def verdicts(evidence: dict[str, object]) -> dict[str, Any]:
    found: Any = evidence["verdicts"]
    return {one["metric"]: one for one in found}


def test_a_version_as_good_as_ever_is_never_told() -> None:
    drift = PerformanceDrift("churn@1", 2)
    assert drift.judge(labelled(1, 20_000)) == []
    page: Any = drift.page()
    assert page["judgements"] > 13
    assert page["reference"]["complete"]
    assert len(page["windows"]) == KEPT
    assert page["windows"][-2]["figures"]["accuracy"] == pytest.approx(0.78, abs=0.05)


def test_labels_that_turn_wrong_are_told_once_and_their_end_too() -> None:
    first = 12_000 * 10_000
    drift = PerformanceDrift("churn@1", 2)
    changes = drift.judge(labelled(1, 12_000))
    changes += drift.judge(labelled(2, 12_000, first, wrong=0.3))
    changes += drift.judge(labelled(3, 12_000, 2 * first))
    changes = [change for change in changes if not change.reminder]
    assert [(change.kind, change.subject, change.state) for change in changes] == [
        ("performance_drift", "churn@1", "opened"),
        ("performance_drift", "churn@1", "resolved"),
    ]
    opened = changes[0]
    msgspec.json.encode(changes)
    assert opened.severity == "critical"
    assert first < opened.ts < first + 8 * HOUR
    assert set(verdicts(opened.evidence)) == {"accuracy", "auc", "calibration"}
    assert all(one["bad"] for one in verdicts(opened.evidence).values())
    assert "accuracy 0." in opened.title
    assert len(opened.evidence["examples"]) == 5  # type: ignore[arg-type]  # JSON


def test_a_small_loss_is_a_warning_that_may_get_worse() -> None:
    first = 12_000 * 10_000
    drift = PerformanceDrift("churn@1", 2, Performance(window_s=6 * 3600))
    changes = drift.judge(labelled(1, 12_000))
    changes += drift.judge(labelled(2, 12_000, first, wrong=0.12))
    changes += drift.judge(labelled(3, 12_000, 2 * first, wrong=0.4))
    told = [(change.state, change.severity) for change in changes if not change.reminder]
    assert told == [("opened", "warning"), ("worsened", "critical")]


def test_it_is_held_against_what_the_manifest_declares() -> None:
    declared = Performance(measured=Quality(rows=5000, accuracy=0.9, auc=0.95, ece=0.01))
    changes = PerformanceDrift("churn@1", 2, declared).judge(labelled(1, 3000))
    assert [change.state for change in changes] == ["opened"]
    assert changes[0].evidence["reference_from"] == "manifest"
    assert verdicts(changes[0].evidence)["accuracy"]["bad"]
    assert not verdicts(changes[0].evidence)["calibration"]["bad"]


def test_probabilities_that_promise_too_much_are_told() -> None:
    steep = []
    for one in labelled(2, 6000, 6000 * 10_000):
        q = one.scores[1] ** 3 / (one.scores[0] ** 3 + one.scores[1] ** 3)
        steep.append(Outcome(one.ts, one.source, one.label, (1 - q, q)))
    changes = PerformanceDrift("churn@1", 2).judge([*labelled(1, 6000), *steep])
    assert [change.state for change in changes] == ["opened"]
    bad = {metric for metric, one in verdicts(changes[0].evidence).items() if one["bad"]}
    assert bad == {"calibration"}
    assert "probability above accuracy" in changes[0].title


@pytest.mark.parametrize(("off", "spread", "metric"), [(1.0, 1.0, "bias"), (0.0, 1.3, "mae")])
def test_a_regressor_is_judged_by_its_error_and_its_bias(off: float, spread: float, metric: str) -> None:
    drift = PerformanceDrift("price@1", 0)
    assert drift.judge(measured(1, 20_000)) == []
    changes = drift.judge(measured(2, 5000, 20_000 * 10_000, off, spread))
    assert [change.state for change in changes] == ["opened"]
    assert verdicts(changes[0].evidence)[metric]["bad"]
    page: Any = drift.page()
    assert page["reliability"] == []
    assert page["windows"][0]["figures"].keys() == {"rows", "mae", "rmse", "bias"}


def test_late_labels_and_corrections_show_on_the_page() -> None:
    drift = PerformanceDrift("churn@1", 2)
    drift.judge(labelled(1, 720))
    page: Any = drift.page()
    before = page["windows"][0]["figures"]
    late = labelled(2, 100, 5)
    drift.judge(late)
    page = drift.page()
    assert page["windows"][0]["figures"]["rows"] == before["rows"] + 100
    drift.judge([Outcome(o.ts, o.source, o.label, o.scores, None, -1) for o in late])
    page = drift.page()
    assert page["windows"][0]["figures"] == before


def test_nothing_is_judged_before_all_its_labels_can_be_known() -> None:
    """One kind of label is known at once, the other after a day: what is there before says nothing."""
    rows = labelled(1, 20_000, odds=-2)
    declared = Quality(rows=20_000, accuracy=sum((one.scores[1] > 0.5) == one.label for one in rows) / len(rows))
    eager, certain = Performance(measured=declared), Performance(measured=declared, labels_after_s=86_400)
    arrived = sorted(rows, key=lambda one: one.ts if one.label else one.ts + DAY)
    assert PerformanceDrift("churn@1", 2, eager).judge(arrived)
    assert PerformanceDrift("churn@1", 2, certain).judge(arrived) == []


def test_few_labels_a_day_are_judged_together() -> None:
    drift = PerformanceDrift("churn@1", 2)
    assert drift.judge(labelled(1, 3000, every_ms=DAY // 10)) == []
    page: Any = drift.page()
    assert page["judgements"] >= 2
    assert 300 <= page["newest"]["labels"] < 1000
    assert len(page["windows"]) <= KEPT


@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_neither_cuts_nor_msgpack_change_anything(data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 9)))
    every_ms = data.draw(st.sampled_from([20_000, HOUR]))
    declared = data.draw(st.sampled_from([None, Performance(measured=Quality(rows=10_000, accuracy=0.77))]))
    rows = labelled(1, 3000, every_ms=every_ms, wrong=0.5)
    rows += [Outcome(o.ts, o.source, o.label, o.scores, None, -1) for o in rows[::7]]
    late = np.argsort([one.ts for one in rows] + random.exponential(50 * every_ms, len(rows)))
    rows = [rows[i] for i in late]
    whole = PerformanceDrift("churn@1", 2, declared)
    expected = whole.judge(rows)
    assert bool(expected) == bool(declared)
    state, changes = PerformanceState(), []
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=8)))
    for first, last in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        part = PerformanceDrift("churn@1", 2, declared, state)
        changes += part.judge(rows[first:last])
        state = msgspec.msgpack.decode(msgspec.msgpack.encode(part.state), type=PerformanceState)
    assert changes == expected
    assert state == whole.state
    assert whole.page() == PerformanceDrift("churn@1", 2, declared, state).page()


@settings(max_examples=10, deadline=None)
@given(data=st.data(), labels=st.sampled_from([0, 2, 3]))
def test_whatever_comes_its_state_is_bounded_and_nothing_fails(data: st.DataObject, labels: int) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 999)))
    drift = PerformanceDrift("churn@1", labels, Performance(window_s=60))
    span = data.draw(st.sampled_from([60_000, DAY, 1000 * DAY]))
    odd = data.draw(st.sampled_from([0.5, float("nan"), float("inf"), -3.0, 1e308]))
    for i in range(500):
        scores = random.random(max(labels, 1)).tolist()
        if random.random() < 0.1:
            scores[0] = odd
        weight = 1 if random.random() < 0.8 else -1
        truth = float(random.normal()) if random.random() < 0.9 else odd
        outcome = Outcome(
            int(random.integers(0, span)), f"observations/0/{i}", int(random.integers(0, 4)), tuple(scores)
        )
        drift.judge([msgspec.structs.replace(outcome, truth=truth, weight=weight)])
    assert len(drift.state.windows) <= KEPT
    assert b"NaN" not in msgspec.json.encode(drift.page())


@pytest.mark.parametrize(("labels", "most"), [(0, 6_000), (2, 40_000), (10, 60_000), (100, 10_000)])
def test_what_is_kept_is_bounded(labels: int, most: int) -> None:
    random = np.random.default_rng(1)
    drift = PerformanceDrift("churn@1", labels)
    for i in range(3000):
        scores = random.dirichlet(np.ones(labels)).tolist() if labels else [float(random.normal())]
        label = int(random.integers(0, max(labels, 1)))
        drift.judge([Outcome(i * 60_000, f"observations/12/{10**9 + i}", label, tuple(scores), 1.0)])
    assert len(msgspec.msgpack.encode(drift.state)) < most
