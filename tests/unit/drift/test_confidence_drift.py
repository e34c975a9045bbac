"""A fall of confidence is found soon, told once, with evidence; nothing else is called drift."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from models.drift.monitor import Monitor
from models.drift.spec import Spec
from tests.unit.drift.streams import SPEC, START_MS, answers, beta, kinds, moved, number, short, told

RULES = {"drift", "drift_suspected", "drift_warning"}


def of_rules(changes: list[Any]) -> list[Any]:
    return [change for change in changes if change.kind in RULES]


def test_a_ten_point_drop_is_a_warning_then_drift_within_1000_records() -> None:
    values = beta(np.random.default_rng(1), (0.8, 5000), (0.7, 3000))
    said = of_rules(told(Monitor(SPEC), answers(values)))
    opened = {change.kind: number(change) - 5000 for change in said if change.state == "opened"}
    assert opened["drift_warning"] < opened["drift"] <= 700
    assert opened["drift_suspected"] == opened["drift"]
    assert short(said).count(("drift_warning", "resolved", 6199)) == 1
    assert [change.severity for change in said if change.kind == "drift"] == ["critical"]


def test_the_evidence_says_which_window_against_what() -> None:
    values = beta(np.random.default_rng(1), (0.8, 5000), (0.6, 1000))
    values[5333] = 0.015625
    drift = next(change for change in told(Monitor(SPEC), answers(values)) if change.kind == "drift")
    last = number(drift)
    window, reference = values[last - 199 : last + 1], values[:2000]
    evidence: dict[str, Any] = drift.evidence
    assert drift.subject == "churn@3"
    assert drift.title == f"Confidence of churn@3 fell from {reference.mean():.3f} to {window.mean():.3f}"
    assert (drift.source, drift.ts) == (f"observations/2/{last}", START_MS + 1000 * last)
    assert (evidence["model"], evidence["version"]) == ("churn", "3")
    assert evidence["window"] == {
        "records": 200,
        "from": f"observations/2/{last - 199}",
        "to": drift.source,
        "from_ts": START_MS + 1000 * (last - 199),
        "to_ts": drift.ts,
        "mean": pytest.approx(window.mean(), abs=1e-5),
        "deviation": pytest.approx(window.std(), abs=1e-5),
    }
    assert evidence["reference"]["records"] == 2000
    assert evidence["reference"]["mean"] == pytest.approx(reference.mean(), abs=1e-5)
    assert evidence["critical"] == 0.12 <= evidence["statistic"]
    assert evidence["p_value"] < 1e-6
    assert evidence["in_a_row"] == 3
    assert 0 < evidence["adwin"]["records_ago"] <= 1000
    assert evidence["adwin"]["before"] > evidence["adwin"]["after"]
    counts = np.histogram(window.astype(np.float32), 20, (0, 1))[0].tolist()
    assert evidence["histogram"]["window"] == counts
    assert sum(evidence["histogram"]["reference"]) == 2000
    lowest = np.argsort(window)[:3] + last - 199
    assert [one["source"] for one in evidence["lowest"]] == [f"observations/2/{k}" for k in lowest]


def test_it_ends_when_confidence_is_back() -> None:
    values = beta(np.random.default_rng(2), (0.8, 5000), (0.6, 2000), (0.8, 3000))
    said = of_rules(told(Monitor(SPEC), answers(values)))
    assert [change.state for change in said if change.kind == "drift"] == ["opened", "worsened", "resolved"]
    over = next(change for change in said if (change.kind, change.state) == ("drift", "resolved"))
    assert (number(over), over.severity) == (7999, "info")


@pytest.mark.parametrize("preset", ["default", "classic"])
def test_a_rise_is_suspected_and_never_confirmed(preset: Any) -> None:
    spec = Spec(name="churn", version="3", labels=("no", "yes"), preset=preset)
    values = beta(np.random.default_rng(3), (0.7, 5000), (0.85, 3000))
    said = of_rules(told(Monitor(spec), answers(values)))
    assert kinds(said) == ({"drift"} if preset == "classic" else {"drift_suspected"})
    assert "rose from" in said[0].title


def test_classic_calls_the_plain_rule_drift() -> None:
    values = beta(np.random.default_rng(3), (0.8, 5000), (0.77, 3000))
    classic = Spec(name="churn", version="3", labels=("no", "yes"), preset="classic")
    assert "drift" not in kinds(told(Monitor(SPEC), answers(values)))
    said = [change for change in of_rules(told(Monitor(classic), answers(values))) if change.kind != "drift_warning"]
    assert said[0].kind == "drift"
    assert said[0].severity == "critical"
    assert "drift_suspected" not in kinds(said)


def test_nothing_is_learned_after_an_alarm_until_a_person_resets() -> None:
    rng = np.random.default_rng(4)
    values = beta(rng, (0.8, 3000), (0.6, 20_000))
    monitor = Monitor(SPEC)
    said = told(monitor, answers(values))
    assert "resolved" not in [change.state for change in said if change.kind == "drift"]
    assert monitor.frozen.confidence is not None
    assert monitor.frozen.confidence.mean == pytest.approx(values[:2000].mean(), abs=1e-5)
    over = monitor.reset()
    assert {change.kind for change in over} >= {"drift", "drift_suspected"}
    assert {(change.state, change.evidence["reset"]) for change in over} == {("resolved", True)}
    assert moved(monitor).frozen.confidence is None
    assert kinds(told(monitor, answers(beta(rng, (0.6, 10_000))))) == set()
    assert monitor.frozen.confidence.mean == pytest.approx(0.6, abs=0.01)


def test_a_fall_while_the_reference_is_collected_ends_it() -> None:
    values = beta(np.random.default_rng(5), (0.8, 1200), (0.6, 2000))
    monitor = Monitor(SPEC)
    opened = {change.kind: number(change) for change in told(monitor, answers(values)) if change.state == "opened"}
    reference = monitor.frozen.confidence
    assert reference is not None
    assert 1100 <= len(reference) <= 1250
    assert reference.mean > 0.78
    assert reference.at == opened["drift_warning"] + 1
    assert opened["drift"] == reference.at + 3 * 200 - 1


def test_a_fall_at_the_very_beginning_is_held_against_the_manifests_sample_if_there_is_one() -> None:
    values = beta(np.random.default_rng(5), (0.8, 300), (0.6, 3000))
    sample = tuple(sorted(beta(np.random.default_rng(6), (0.8, 1000))))
    known = Monitor(Spec(name="churn", version="3", labels=("no", "yes"), reference_confidence=sample))
    assert {"drift_warning", "drift"} <= kinds(told(known, answers(values)))
    assert known.frozen.confidence is not None
    assert known.frozen.confidence.origin == "manifest"
    unknown = Monitor(SPEC)
    assert kinds(told(unknown, answers(values))) == set()
    assert unknown.frozen.confidence is not None
    assert unknown.frozen.confidence.mean == pytest.approx(0.6, abs=0.01)


def test_records_that_depend_on_each_other_want_more() -> None:
    """AR(1) with .9, around .75: means of 200 wander by .08; independent records' by .013."""
    rng = np.random.default_rng(7)
    noise, scores = rng.standard_normal(100_000) * (1 - 0.81) ** 0.5, np.zeros(100_000)
    for k in range(1, len(scores)):
        scores[k] = 0.9 * scores[k - 1] + noise[k]
    monitor = Monitor(SPEC)
    assert not kinds(told(monitor, answers(np.clip(0.7 + 0.18 * scores, 0, 1)), 5000)) & {"drift", "drift_suspected"}
    assert monitor.frozen.confidence is not None
    assert monitor.frozen.confidence.dependence > 10
    assert monitor.confidence.needed > 0.1


def test_the_page_shows_what_it_knows() -> None:
    monitor = Monitor(SPEC)
    told(monitor, answers(beta(np.random.default_rng(1), (0.8, 1500))))
    page: Any = monitor.page()["confidence"]
    assert (page["reference"], page["collected"]) == (None, 1500)
    told(monitor, answers(beta(np.random.default_rng(1), (0.8, 3700), (0.6, 800))))
    whole: Any = moved(monitor).page()
    page = whole["confidence"]
    assert {one["kind"] for one in whole["open"]} >= {"drift", "drift_suspected", "drift_warning"}
    assert (page["reference"]["records"], page["reference"]["critical"]) == (2000, 0.12)
    assert sum(page["histogram"]["reference"]) == 2000
    assert page["histogram"]["records"] == sum(page["histogram"]["now"]) == 1000
    assert len(page["windows"]) == 5
    assert (page["recent"]["records"], len(page["recent"]["points"])) == (100, 40)
    assert page["recent"]["points"][-1]["mean"] == pytest.approx(0.6, abs=0.05)
    assert page["adwin"]["last_fall"]["before"] > page["adwin"]["last_fall"]["after"]
