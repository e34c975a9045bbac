"""What an alert carries is what a person needs to act on it, and is true of the answers that it names."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from scipy import stats

from agents.drift import alert_of
from agents.responses import unasked
from core.events import Deployment
from models.drift.condition import Change
from models.drift.monitor import Monitor
from models.drift.spec import Spec
from tests.unit.drift.streams import SPEC, answers, beta, number, told
from tests.unit.drift.test_composition import SPEC as DESCRIBED
from tests.unit.drift.test_composition import stream as described

RNG = np.random.default_rng(8)
CHANGE = 5000
VALUES = beta(RNG, (0.8, CHANGE), (0.6, 4000)).astype(np.float32)
LABELS = np.concatenate((RNG.random(CHANGE) < 0.3, RNG.random(4000) < 0.5)).astype(np.uint16)
OPENED: dict[str, Change] = {
    change.kind: change
    for change in told(Monitor(SPEC), answers(VALUES, apart_ms=200, best=LABELS))
    if change.state == "opened"
}
CONFIDENCE = ("drift", "drift_suspected", "drift_warning", "low_confidence_share", "low_confidence_mean")


def evidence(kind: str) -> dict[str, Any]:
    return OPENED[kind].evidence


def window(kind: str) -> slice:
    """The answers that the evidence is about."""
    first, last = (int(evidence(kind)["window"][end].rpartition("/")[2]) for end in ("from", "to"))
    return slice(first, last + 1)


@pytest.mark.parametrize("kind", CONFIDENCE)
def test_the_histograms_are_those_of_the_window_that_is_named_and_of_the_reference(kind: str) -> None:
    of, pair = window(kind), evidence(kind)["histogram"]
    assert of.stop == number(OPENED[kind]) + 1
    assert evidence(kind)["window"]["records"] == len(VALUES[of]) >= 100
    assert pair["window"] == np.histogram(VALUES[of], 20, (0, 1))[0].tolist()
    assert pair["reference"] == np.histogram(VALUES[:2000], 20, (0, 1))[0].tolist()


@pytest.mark.parametrize("kind", CONFIDENCE)
def test_the_examples_are_the_answers_with_the_lowest_confidence(kind: str) -> None:
    of, lowest = window(kind), evidence(kind)["lowest"]
    if kind == "low_confidence_share":  # of each window of 200
        parts = VALUES[of].reshape(5, 200).argmin(axis=1) + np.arange(of.start, of.stop, 200)
        places = parts[np.argsort(VALUES[parts], kind="stable")].tolist()
        assert [one["source"] for one in lowest] == [f"observations/2/{place}" for place in places]
        return
    if kind == "drift_warning":  # of the window that isn't full
        of = slice(of.start + 200, of.stop)
    places = (np.argsort(VALUES[of], kind="stable")[:3] + of.start).tolist()
    assert [one["source"] for one in lowest] == [f"observations/2/{place}" for place in places]
    assert [one["confidence"] for one in lowest] == pytest.approx(VALUES[places].tolist(), abs=1e-6)


def test_each_says_by_how_much_a_threshold_is_passed() -> None:
    for kind in ("drift", "drift_suspected", "drift_warning"):
        assert evidence(kind)["statistic"] >= evidence(kind)["critical"] > 0
    share, mean = evidence("low_confidence_share"), evidence("low_confidence_mean")
    assert share["share"] >= share["thresholds"]["warning"]
    assert share["share"] == np.mean(VALUES[window("low_confidence_share")] < np.float32(share["low_below"]))
    assert mean["mean"] < mean["thresholds"]["warning"]
    assert mean["mean"] == pytest.approx(VALUES[window("low_confidence_mean")].mean(), abs=1e-5)


def test_of_labels_the_critical_value_is_scipys_and_the_examples_say_the_label_that_grew() -> None:
    found, of = evidence("label_drift"), window("label_drift")
    assert found["critical"] == pytest.approx(stats.chi2.isf(1e-4, found["degrees_of_freedom"]), rel=1e-5)
    assert found["statistic"] >= found["critical"]
    assert found["histogram"]["bars"][:2] == ["no", "yes"]
    assert found["histogram"]["window"][:2] == pytest.approx([np.mean(LABELS[of] == k) for k in (0, 1)])
    assert found["histogram"]["reference"][:2] == pytest.approx([np.mean(LABELS[:2000] == k) for k in (0, 1)])
    places = [int(one.rpartition("/")[2]) for one in found["examples"]]
    assert len(places) == 5
    assert all(of.start <= place < of.stop and LABELS[place] == 1 for place in places)


def test_what_is_expected_to_be_worse_has_its_spread_and_its_least_sure_answers() -> None:
    p = np.concatenate((beta(RNG, (0.85, 4000)), beta(RNG, (0.7, 3000)))).astype(np.float32)
    given = answers(p)
    [change] = [one for one in told(Monitor(calibrated()), given) if one.kind == "performance_expected"]
    found: Any = change.evidence
    last = number(change)
    of = slice(last - 999, last + 1)
    assert (found["window"]["from"], found["window"]["to"]) == (f"observations/2/{last - 999}", change.source)
    assert found["deviations"] >= found["critical"]
    assert found["histogram"]["window"] == np.histogram(p[of], 20, (0, 1))[0].tolist()
    assert found["histogram"]["reference"] == np.histogram(p[:2000], 20, (0, 1))[0].tolist()
    places = (np.argsort(p[of], kind="stable")[:3] + of.start).tolist()
    assert found["examples"] == [f"observations/2/{place}" for place in places]


def calibrated() -> Spec:
    return Spec(name="churn", version="3", labels=("no", "yes"), calibrated=True)


def test_beside_a_fall_of_confidence_stand_the_inputs_that_changed_most() -> None:
    given = described(3000)
    assert given.confidence is not None
    sure = given.confidence.copy()
    sure[3000:] *= 0.7
    changes = Monitor(DESCRIBED).fold(dataclasses.replace(given, confidence=sure))
    features: Any = next(change for change in changes if change.kind == "drift").evidence["features"]
    assert [(one["feature"], one["what"]) for one in features] == [("age", "distribution")]
    assert features[0]["change"] == pytest.approx(0.6, abs=0.05)


def test_every_alert_names_its_model_its_version_and_what_was_done() -> None:
    live = Deployment(model="churn", revision=4, active="3", fallback="2", response="freeze", since=1)
    for change in OPENED.values():
        alert = alert_of(change)
        assert (alert.evidence["model"], alert.evidence["version"]) == ("churn", "3")
        assert (unasked(change, "3", live) is None) == (change.kind == "drift")
    drift = OPENED["drift"]
    assert unasked(drift, "3", None) == "no response is declared for it"
    assert unasked(drift, "3", live.model_copy(update={"response": None})) == "no response is declared for it"
    assert unasked(drift, "1", live) == "it answers nobody: it only computes for comparison, or not at all"
    assert unasked(OPENED["label_drift"], "3", live) == "drift alone is answered"
