"""What becomes of requests on control, whatever comes in which order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from core.errors import RequestRefusedError
from core.events import Action, Backfill, Canary, Deployment
from engine.codec import codec_of
from tables.deployments import MAX_SHADOWS, judge

CODEC = codec_of(Deployment)
VERSIONS = ["1", "2", "3", "4", "5", "6"]


def ask(now: Deployment | None, ts: int = 7, **action: Any) -> Deployment:
    return judge("churn", Action(**action), now, VERSIONS, ts)


def refused(now: Deployment | None, match: str, **action: Any) -> None:
    with pytest.raises(RequestRefusedError, match=match):
        ask(now, **action)


ONE = ask(None, active="1")
TWO = ask(ONE, active="2")
TRIED = ask(TWO, action="canary", version="3", share=0.1)


def test_a_deployment_remembers_what_was_active_before() -> None:
    assert (ONE.revision, ONE.active, ONE.previous) == (1, "1", None)
    assert (TWO.revision, TWO.active, TWO.previous) == (2, "2", "1")
    assert ask(TWO, active="2").previous == "1"


def test_a_canary_grows_and_is_promoted_without_being_named() -> None:
    assert TRIED.canary == Canary(version="3", share=0.1)
    grown = ask(TRIED, action="canary", share=0.5)
    assert grown.canary == Canary(version="3", share=0.5)
    promoted = ask(grown, action="promote")
    assert (promoted.active, promoted.previous, promoted.canary) == ("3", "2", None)


def test_a_rollback_ends_the_canary_first_and_then_goes_back_a_version() -> None:
    back = ask(TRIED, action="rollback")
    assert (back.active, back.canary) == ("2", None)
    again = ask(back, action="rollback")
    assert (again.active, again.previous) == ("1", "2")
    assert ask(again, action="rollback", version="5").active == "5"
    refused(ONE, "no version was active before", action="rollback")
    refused(None, "has no active version", action="rollback")
    refused(TWO, "is active already", action="rollback", version="2")


def test_a_freeze_stops_promotions_until_a_person_says_otherwise_and_no_retreat() -> None:
    frozen = ask(TRIED, action="freeze", reason="an incident")
    refused(frozen, r"frozen.*an incident", action="promote")
    refused(frozen, "frozen", active="4")
    refused(frozen, "frozen", action="canary", version="4", share=0.1)
    refused(frozen, "frozen already", action="freeze")
    assert ask(frozen, action="rollback").canary is None
    assert ask(frozen, action="shadow", version="4").shadow == ("4",)
    refused(frozen, "say who", action="unfreeze")
    assert ask(ask(frozen, action="unfreeze", author="ana"), action="promote").active == "3"


def test_shadows_have_a_bound_and_leave_when_they_get_another_role() -> None:
    state = TWO
    for version in ("3", "4", "5"):
        state = ask(state, action="shadow", version=version)
    assert len(state.shadow) == MAX_SHADOWS
    refused(state, "unload one of 3, 4, 5", action="shadow", version="6")
    refused(state, "computes already", action="shadow", version="4")
    assert ask(state, action="canary", version="4", share=1).shadow == ("3", "5")
    assert ask(state, action="unload", version="3").shadow == ("4", "5")
    assert ask(state, active="5").shadow == ("3", "4")


def test_a_backfill_is_the_deployments_until_the_next_or_the_end_of_the_model() -> None:
    asked = ask(TRIED, action="backfill", since=5)
    assert asked.backfill == Backfill(revision=asked.revision, features=(), since=5)
    assert (asked.active, asked.canary) == (TRIED.active, TRIED.canary)
    assert ask(asked, action="promote").backfill == asked.backfill
    again = ask(asked, action="backfill", version="3")
    assert again.backfill == Backfill(revision=asked.revision + 1, features=())
    assert ask(again, action="unload").backfill is None
    refused(None, "no active version", action="backfill")
    refused(TRIED, "isn't deployed", action="backfill", version="6")
    refused(TRIED, "still to come", action="backfill", since=8)


def test_unloading_the_active_version_ends_the_model() -> None:
    for version in (None, "2"):
        gone = ask(TRIED, action="unload", version=version)
        assert (gone.versions, gone.previous) == ((), "2")
        assert CODEC.decode(CODEC.encode(gone)) == gone
    assert ask(TRIED, action="unload", version="3").canary is None
    refused(TRIED, "isn't deployed", action="unload", version="6")
    refused(None, "no active version", action="unload")


@pytest.mark.parametrize(
    ("now", "match", "action"),
    [
        (TWO, "needs a version and a share", {"action": "canary", "version": "3"}),
        (TWO, "needs a version and a share", {"action": "canary", "share": 0.1}),
        (TWO, "rollback", {"action": "canary", "version": "3", "share": 0}),
        (TWO, "is the active version", {"action": "canary", "version": "2", "share": 0.1}),
        (None, "deploy one first", {"action": "canary", "version": "2", "share": 0.1}),
        (TWO, "not in the store", {"action": "canary", "version": "9", "share": 0.1}),
        (TWO, "names no version", {"action": "promote"}),
        (TWO, r"limit 'max_eror' is none: there is min_events", {"active": "3", "limits": {"max_eror": 1}}),
        (TWO, "must be between 0 and 1", {"active": "3", "limits": {"max_error": 2}}),
        (TWO, "based on revision 1 .* at 2", {"active": "3", "based_on": 1}),
    ],
)
def test_what_can_not_be_is_refused_with_what_to_do(now: Deployment | None, match: str, action: dict[str, Any]) -> None:
    refused(now, match, **action)


requests: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    action=st.sampled_from(["deploy", "promote", "canary", "shadow", "rollback", "freeze", "unfreeze", "unload"]),
    version=st.none() | st.sampled_from([*VERSIONS, "9"]),
    share=st.none() | st.sampled_from([0.0, 0.1, 1.0]),
    author=st.none() | st.just("ana"),
    based_on=st.none() | st.integers(0, 12),
    limits=st.none() | st.dictionaries(st.sampled_from(["min_events", "max_error", "typo"]), st.sampled_from([0, 1])),
)


@given(st.lists(requests, max_size=30))
def test_any_requests_in_any_order_lead_to_a_state_that_can_be_made_true(asked: list[dict[str, Any]]) -> None:
    now: Deployment | None = None
    for ts, action in enumerate(asked):
        before = now
        try:
            now = ask(now, ts, **action)
        except (RequestRefusedError, ValidationError):
            continue
        assert now.revision == (before.revision if before else 0) + 1
        assert len(set(now.versions)) == len(now.versions), "no version has two roles"
        assert set(now.versions) <= set(VERSIONS)
        assert len(now.shadow) <= MAX_SHADOWS
        if now.active is None:
            assert not now.versions
        if before is not None and before.frozen and now.frozen:
            assert now.active in {before.active, before.previous, None, action["version"]}
            assert action["action"] in {"rollback", "shadow", "unload"}
        assert CODEC.decode(CODEC.encode(now)) == now


def test_a_model_that_was_frozen_and_unloaded_can_be_unfrozen_and_deployed() -> None:
    gone = ask(ask(TWO, action="freeze", author="anna"), action="unload")
    refused(gone, "frozen", active="2")
    thawed = ask(gone, action="unfreeze", author="anna")
    assert (thawed.frozen, thawed.active) == (False, None)
    assert ask(thawed, active="2").active == "2"
    refused(gone, "has no active version", action="freeze")


def test_what_stands_in_a_deployments_place_is_overtaken() -> None:
    again = ask(TWO, action="republish", based_on=50)
    assert again.model_copy(update={"revision": TWO.revision}) == TWO
    assert again.revision == 51
    assert ask(TWO, action="republish", based_on=1) == TWO
    assert ask(TWO, action="republish", based_on=10**30) == TWO


def test_a_version_is_not_its_own_fallback() -> None:
    refused(TWO, "can't be its own fallback", active="3", fallback="3")
