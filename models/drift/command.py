"""What a person tells the detectors of a version."""

from __future__ import annotations

from typing import Literal

import msgspec

from models.drift.condition import Change
from models.drift.monitor import Monitor


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


def obey(monitor: Monitor, command: Command) -> list[Change]:
    """Does it. Returns what has ended by it."""
    if command.does == "reset":
        return [msgspec.structs.replace(change, source=command.source, ts=command.ts) for change in monitor.reset()]
    identity, ended = monitor.spec.identity, []
    if command.subject not in (None, identity):
        return []
    for kind, condition in monitor.conditions.items():
        if condition.level and command.kind in (None, kind):
            if command.does == "acknowledge":
                condition.by = command.by
                continue
            condition.end(command.ts)
            ended.append(
                Change(
                    kind=kind,
                    subject=identity,
                    state="resolved",
                    severity="info",
                    ts=command.ts,
                    source=command.source,
                    title=f"{command.by} says that it is over",
                    evidence={"by": command.by},
                )
            )
    return ended
