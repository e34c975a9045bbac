"""`faust -A app tables erase SESSION`: asks the owner of the session's partition, and waits for its word."""

from __future__ import annotations

import uuid
from typing import Final

from cli.asking import WAIT_S, ask
from cli.report import Report
from core.erasure import ERASED, pseudonym
from core.errors import UsageError
from core.events import Action, Alert
from core.topics import ALERTS
from engine.connection import Connection

LONGEST: Final = 1000
"""Characters of a session."""
ELSEWHERE: Final = "Input topics, outputs already sent and backups keep what they have (docs/state.md)."


def key_of(session: str) -> bytes:
    """The key of a session's records. Raises UsageError for what can't be a session."""
    if not 1 <= len(session) <= LONGEST:
        raise UsageError(f"a session has 1 to {LONGEST:,} characters, not {len(session):,}")
    try:
        return session.encode()
    except UnicodeEncodeError:
        raise UsageError("the session is not UTF-8, which every session is: nothing was asked for") from None


async def erase(connection: Connection, session: str, wait_s: float = WAIT_S) -> Report:
    """Writes the request, and reports what the owner erased, or that the request waits for one.

    Raises UsageError for what can't be a session, SettingsError where the broker has no such application.
    """
    key_of(session)
    action = Action(action="erase", session=session, id=uuid.uuid4().hex)
    asked, alert = await ask(connection, session, action, [ALERTS], _erased, wait_s)
    document = {"subject": pseudonym(session), "request": asked.source}
    if alert is None:
        return Report(
            document | {"state": "waiting"},
            [
                f"Not done yet: no worker has answered within {wait_s:g} s. The request waits as {asked.source}, "
                f"and is done once a worker has partition {asked.partition}; an alert about {document['subject']} will "
                "say so.",
                ELSEWHERE,
            ],
        )
    values: dict[str, int] = alert.evidence["values"]
    held = ", ".join(f"{table} {count}" for table, count in sorted(values.items()) if count)
    return Report(
        document | {"state": "erased", "values": values},
        [f"Erased: {held or 'no table held anything of it'}. ({asked.source}; alert {document['subject']})", ELSEWHERE],
    )


def _erased(alert: Alert) -> Alert | None:
    return alert if alert.kind == ERASED else None
