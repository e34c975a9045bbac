"""When a canary takes over or goes, by what its deployment declares."""

from __future__ import annotations

import pytest

from models.limits import Figures, Standing, Verdict, judged, standings, wanting

FINE = Figures(answers=1000, confidence=900.0, confident=1000, compared=1000, agreed=990, p99_s=0.01)


@pytest.mark.parametrize(
    ("limits", "figures", "verdict"),
    [
        ({}, FINE, None),
        ({"min_events": 1000}, FINE, Verdict.PROMOTE),
        ({"min_events": 1001}, FINE, None),
        ({"max_error": 0.01}, FINE, None),
        ({"max_error": 0.01, "min_events": 10}, FINE, Verdict.PROMOTE),
        ({"max_error": 0.01}, Figures(answers=980, failures=20), Verdict.ROLLBACK),
        ({"max_error": 0.01}, Figures(answers=0, failures=99), None),
        ({"max_error": 0.01, "min_events": 10}, Figures(answers=5, failures=5), Verdict.ROLLBACK),
        ({"max_p99": 0.005}, FINE, Verdict.ROLLBACK),
        ({"min_agreement": 0.995}, FINE, Verdict.ROLLBACK),
        ({"min_agreement": 0.98, "min_events": 500}, FINE, Verdict.PROMOTE),
        ({"min_agreement": 0.98, "min_events": 500}, Figures(answers=1000), None),
        ({"min_confidence": 0.95}, FINE, Verdict.ROLLBACK),
    ],
)
def test_limits_decide(limits: dict[str, float], figures: Figures, verdict: Verdict | None) -> None:
    found = judged(limits, figures)
    assert (found and found.verdict) == verdict


def test_workers_add_up_and_the_slowest_one_counts() -> None:
    both = FINE + Figures(answers=1000, failures=10, compared=10, agreed=0, p99_s=0.5)
    assert (both.answers, both.failures, both.compared, both.agreed, both.p99_s) == (2000, 10, 1010, 990, 0.5)
    found = judged({"max_error": 0.001}, both)
    assert found is not None
    assert found.why == "max_error is 0.001, it has 0.004975 after 2010 events"


def test_what_a_canary_still_lacks_is_told_beside_what_it_keeps_and_breaks() -> None:
    limits = {"min_events": 500.0, "min_agreement": 0.9, "max_error": 0.01, "min_confidence": 0.5}
    early = Figures(answers=40, failures=10, compared=20, agreed=20)
    assert standings(limits, early) == [
        Standing("min_events", 500, 50, False),
        Standing("min_agreement", 0.9, 1.0, None),
        Standing("max_error", 0.01, 0.2, None),
        Standing("min_confidence", 0.5, None, None),
    ]
    assert wanting(limits, early) == [
        "min_events is 500, it has 50",
        "min_agreement takes 100 compared events, it has 20",
    ]
    later = Figures(answers=500, confidence=450.0, confident=500, compared=120, agreed=100)
    assert [one.holds for one in standings(limits, later)] == [True, False, True, True]
    assert wanting(limits, later) == []
    assert "never promoted by itself" in wanting({"max_error": 0.01}, later)[0]


def test_a_limit_of_a_newer_release_decides_nothing_here() -> None:
    assert standings({"max_drift": 0.1}, FINE) == [Standing("max_drift", 0.1, None, None)]
    assert judged({"max_drift": 0.1}, FINE) is None
