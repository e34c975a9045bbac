"""What a person tells the detectors of a version."""

from __future__ import annotations

from typing import Literal

import msgspec


class Command(msgspec.Struct, tag="command", array_like=True, frozen=True):
    """Accepted by the model's judge, and passed on to who keeps the detectors' state."""

    does: Literal["reset", "acknowledge", "resolve"]
    """reset: all begins anew, the reference too; acknowledge: it is known, no reminders; resolve: it has ended."""
    kind: str | None
    """Of the condition; None: all that are open."""
    subject: str | None
    by: str
    source: str
    """Of the request on `control`."""
    ts: int
    """ms since epoch: of the request."""
