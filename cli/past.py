"""A moment in the past, as an operator writes it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from core.errors import UsageError

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def past(text: str, option: str) -> datetime:
    """A time with its zone; option: which one gave it. Raises UsageError."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} is {text!r}; write a time like 2026-01-31T12:00Z") from None
    if found.tzinfo is None:
        raise UsageError(f"{option} is {text!r}, in which time zone? Write {found.isoformat()}Z for UTC")
    if found < EPOCH:
        raise UsageError(f"{option} is {text!r}; records' timestamps begin with {EPOCH:%Y}")
    if found > datetime.now(UTC):
        raise UsageError(f"{option} is {text!r}, which is still to come")
    return found
