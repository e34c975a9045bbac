"""What a deployment declares for a drift is done once, unless a person has asked for something else meanwhile."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from agents.responses import asked
from core.errors import RequestRefusedError
from core.events import Action, Deployment
from models.drift.condition import Change
from tables.deployments import judge

VERSIONS = ["1", "2", "3"]


def ask(now: Deployment | None, versions: list[str] = VERSIONS, **action: Any) -> Deployment:
    return judge("churn", Action(**action), now, versions, 7)


def refused(now: Deployment | None, match: str, **action: Any) -> None:
    with pytest.raises(RequestRefusedError, match=match):
        ask(now, **action)


LIVE = ask(None, active="2", fallback="1", response="fallback,freeze")


def drift(**changes: Any) -> Change:
    told = Change(
        kind="drift",
        subject="churn@2",
        state="opened",
        severity="critical",
        ts=99,
        source="observations/0/5",
        title="it drifts",
        evidence={},
    )
    return msgspec.structs.replace(told, **changes)


def respond(now: Deployment, version: str = "2", **changes: Any) -> Action:
    action = asked(drift(), version, now, "observations/0/5/drift/churn@2/opened")
    assert action is not None
    return action.model_copy(update=changes)


def test_a_drift_of_the_active_version_is_answered_as_declared() -> None:
    after = judge("churn", respond(LIVE), LIVE, VERSIONS, 7)
    assert (after.active, after.previous, after.frozen, after.author) == ("1", "2", True, "drift")
    assert (after.response, after.fallback) == ("freeze, fallback", "1")


def test_what_a_person_has_asked_for_meanwhile_comes_first() -> None:
    frozen = ask(LIVE, action="freeze", author="anna")
    with pytest.raises(RequestRefusedError, match="based on revision 1"):
        judge("churn", respond(LIVE), frozen, VERSIONS, 7)


def test_a_version_that_is_no_longer_active_is_left_alone() -> None:
    swapped = ask(LIVE, active="3")
    with pytest.raises(RequestRefusedError, match="no longer is the active version"):
        judge("churn", respond(LIVE, based_on=swapped.revision), swapped, VERSIONS, 7)
    assert asked(drift(), "1", swapped, "a") is None


def test_a_frozen_model_still_goes_to_its_fallback() -> None:
    frozen = ask(LIVE, action="freeze", author="anna")
    after = judge("churn", respond(frozen), frozen, VERSIONS, 7)
    assert (after.active, after.frozen) == ("1", True)


def test_a_fallback_that_has_gone_keeps_nothing_from_being_frozen() -> None:
    after = judge("churn", respond(LIVE), LIVE, ["2", "3"], 7)
    assert (after.active, after.frozen) == ("2", True)


def test_a_canary_that_drifts_is_rolled_back() -> None:
    tried = ask(LIVE, action="canary", version="3", share=0.1)
    action = asked(drift(), "3", tried, "a")
    assert action is not None
    after = judge("churn", action, tried, VERSIONS, 7)
    assert (after.active, after.canary) == ("2", None)


@pytest.mark.parametrize(
    "changes",
    [{"state": "resolved"}, {"state": "worsened"}, {"kind": "drift_suspected"}, {"reminder": True}],
    ids=str,
)
def test_only_the_beginning_of_a_confirmed_drift_is_answered(changes: dict[str, Any]) -> None:
    assert asked(drift(**changes), "2", LIVE, "a") is None


def test_nothing_is_done_where_nothing_is_declared() -> None:
    assert asked(drift(), "2", ask(None, active="2"), "a") is None
    assert asked(drift(), "2", ask(LIVE, active="2", response="none"), "a") is None
    assert asked(drift(), "2", None, "a") is None


def test_a_response_is_checked_when_it_is_declared() -> None:
    refused(None, "name its fallback version", active="2", response="fallback")
    refused(None, "not in the store", active="2", response="fallback", fallback="9")
    with pytest.raises(ValidationError, match="'panic' is none"):
        Action(active="2", response="freeze, panic")
    assert ask(LIVE, active="3").response == "freeze, fallback"


def test_a_response_says_what_it_is_based_on() -> None:
    refused(LIVE, "names the version that drifts", action="respond", version="2", response="freeze")
