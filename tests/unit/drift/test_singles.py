"""Single answers with low confidence: told one by one where a deployment asks for it, and never more than it wants."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from agents.drift import Detectors
from core.events import Alert, Deployment
from models.drift.answers import Scored
from models.drift.singles import Singles
from models.drift.spec import Spec
from tests.unit.drift.streams import answers

SPEC = Spec(name="churn", version="3", labels=("no", "yes"))
NOW = 1_767_225_600_000
DOUBTFUL = [0.9, 0.3, 0.8, 0.69, 0.7, 0.1, 0.2]


def scored(confidences: list[float], first: int = 0) -> Scored:
    sure = np.array(confidences, "<f4").tobytes()
    offsets = np.arange(first, first + len(confidences), dtype="<i8").tobytes()
    labels = np.ones(len(confidences), "<u2").tobytes()
    return Scored(0, offsets, offsets, labels, sure, sure)


def told(detectors: Detectors, confidences: list[float], most: float, first: int = 0, now: int = NOW) -> list[Alert]:
    deployment = Deployment(model="churn", revision=1, active="3", low_alerts=most, since=1)
    detectors.take([(scored(confidences, first), now)])
    detectors.fold()
    return list(detectors.singles_told("churn@3", deployment))


def test_each_doubtful_answer_is_an_alert_with_its_source_and_what_it_said() -> None:
    alerts = told(Detectors(SPEC, "observations", 1), DOUBTFUL, 10)
    assert [alert.id for alert in alerts] == [
        f"observations/0/{offset}/low_confidence/churn@3/opened" for offset in (1, 3, 5, 6)
    ]
    assert alerts[1].evidence == {
        "model": "churn",
        "version": "3",
        "source": "observations/0/3",
        "confidence": 0.69,
        "below": 0.7,
        "label": "yes",
        "score": 0.69,
    }
    assert {(alert.severity, alert.subject) for alert in alerts} == {("info", "churn@3")}


def test_nothing_is_told_where_nobody_asked() -> None:
    assert told(Detectors(SPEC, "observations", 1), DOUBTFUL, 0) == []
    detectors = Detectors(SPEC, "observations", 1)
    detectors.take([(scored(DOUBTFUL), NOW)])
    detectors.fold()
    assert list(detectors.singles_told("churn@3", None)) == []


def test_of_a_flood_as_many_a_minute_as_asked_and_the_next_says_how_many_were_left_out() -> None:
    detectors = Detectors(SPEC, "observations", 1)
    found = Counter[int]()
    for second in range(180):
        now = NOW + 1000 * second
        for alert in told(detectors, [0.1] * 50, 3, first=50 * second, now=now):
            found[second // 60] += 1
            if second in (60, 120):
                kept_back = alert.evidence.get("kept_back")
                assert kept_back in (None, 60 * 50 - 3)
    assert found == {0: 3, 1: 3, 2: 3}


def test_a_restart_begins_no_new_minute_and_neither_does_a_replay() -> None:
    singles = Singles()
    given = answers(np.full(10, 0.1))
    assert len(singles.pick(given, 0.7, 4, NOW)) == 4
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(singles), type=Singles)
    assert again.pick(given, 0.7, 4, NOW + 30_000) == []
    assert again.pick(given, 0.7, 4, NOW - 3_600_000) == [], "records written before belong to no earlier minute"
    assert again.pick(given, 0.7, 4, NOW + 60_000)[0] == (0, 26)
