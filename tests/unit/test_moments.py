"""What an operator may type: a time for `reset --from`, a session for `tables erase`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from cli.erasing import key_of
from cli.past import past
from core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-01-31T12:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T13:00+01:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("1970-01-01T00:00Z", datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_time_is_one_with_its_zone(text: str, meant: datetime) -> None:
    assert past(text, "--from") == meant


@pytest.mark.parametrize("text", ["2026-01-31", "2026-01-31T12:00", "20260131T120001"])
def test_a_time_without_a_zone_is_refused_with_what_would_be_taken(text: str) -> None:
    with pytest.raises(UsageError, match="in which time zone") as refused:
        past(text, "--from")
    advice = str(refused.value).partition("Write ")[2].removesuffix(" for UTC")
    assert past(advice, "--from") == datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "write a time like"),
        ("yesterday", "write a time like"),
        ("1700000000", "write a time like"),
        ("1969-12-31T23:59Z", "begin with 1970"),
        ("0001-01-01T00:00+14:00", "begin with 1970"),
        ("9999-12-31T23:59Z", "still to come"),
    ],
)
def test_a_time_that_can_not_be_meant_is_refused(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        past(text, "--from")


@pytest.mark.parametrize("session", ["a", "ä" * 1000, "日本 \n", "-x", "\0"])
def test_a_session_is_any_text_of_up_to_a_thousand_characters(session: str) -> None:
    assert key_of(session) == session.encode()


@pytest.mark.parametrize(
    ("session", "told"),
    [("", "not 0"), ("x" * 1001, "not 1,001"), (b"\xff\xfe".decode("utf-8", "surrogateescape"), "UTF-8")],
)
def test_what_can_be_no_session_is_refused(session: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        key_of(session)
