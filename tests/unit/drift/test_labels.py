"""Labels that are answered more or less often than when the version began."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from models.drift.condition import Change
from models.drift.monitor import Monitor
from models.drift.spec import Spec
from tests.unit.drift.streams import answers, number, told


def of_labels(labels: int, best: Any, monitor: Monitor | None = None) -> list[Change]:
    spec = Spec(name="churn", version="3", labels=tuple(f"l{k}" for k in range(labels)))
    given = answers(np.full(len(best), 0.9), best=np.asarray(best))
    return [one for one in told(monitor or Monitor(spec), given, 700) if one.kind == "label_drift"]


def test_a_share_that_moves_by_ten_points_is_found_within_3000_records() -> None:
    rng = np.random.default_rng(1)
    best = np.concatenate((rng.random(5000) < 0.3, rng.random(5000) < 0.4, rng.random(6000) < 0.3))
    said = of_labels(2, best)
    assert [(one.state, one.severity, number(one)) for one in said] == [
        ("opened", "warning", 6999),
        ("resolved", "info", 11999),
    ]
    evidence: Any = said[0].evidence
    assert said[0].title.startswith("churn@3 answers l0 in 6")
    assert evidence["degrees_of_freedom"] == 1
    assert evidence["p_value"] < evidence["level"]
    assert [one["label"] for one in evidence["labels"]] == ["l0", "l1"]
    assert evidence["window"]["from"] == "observations/2/6000"


@pytest.mark.parametrize("labels", [2, 3, 30, 1000])
def test_labels_that_stay_as_they_are_are_no_news(labels: int) -> None:
    rng = np.random.default_rng(labels)
    shares = rng.dirichlet(np.full(labels, 0.5))
    assert not of_labels(labels, rng.choice(labels, 60_000, p=shares))


def test_one_of_a_thousand_rare_labels_that_becomes_frequent() -> None:
    rng = np.random.default_rng(1)
    best = rng.integers(0, 1000, 10_000)
    best[6000:][rng.random(4000) < 0.2] = 777
    said = of_labels(1000, best)
    assert [(one.state, number(one)) for one in said] == [("opened", 7999)]
    evidence: Any = said[0].evidence
    assert evidence["labels"][0]["label"] == "l777"


def test_all_of_one_label_is_fine_until_another_comes() -> None:
    assert not of_labels(2, np.zeros(20_000))
    best = np.zeros(8000)
    best[5000::5] = 1
    assert [one.state for one in of_labels(2, best)] == ["opened"]


def test_labels_that_come_in_runs_want_more() -> None:
    rng = np.random.default_rng(3)
    assert not of_labels(2, np.repeat(rng.random(3000) < 0.3, 20))
