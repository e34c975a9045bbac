"""control -> everything that a partition holds of a session goes -> one alert that says so."""

from __future__ import annotations

import logging

from core.erasure import ERASED, pseudonym
from core.errors import KeyMismatchError
from core.events import Action, Alert
from core.topics import ALERTS
from engine.batch import Slice

log = logging.getLogger(__name__)


def erase(s: Slice[Action], session: str, action: Action) -> None:
    """Erases, in the transaction that takes the request's record. Raises KeyMismatchError where another partition may
    hold the session."""
    record, source = s.records[0], s.source(0)
    if record.key != session.encode():
        raise KeyMismatchError(record.key, session)
    erased = s.task.erase(s, session)
    if erased is None:
        return
    subject = pseudonym(session)
    log.info("%s is erased, as %s asks: %s", subject, source, erased)
    s.send(ALERTS, subject, erasure(str(source), subject, erased, action, record.timestamp))
    s.finish()


def erasure(source: str, subject: str, erased: dict[str, int], action: Action, ts: int) -> Alert:
    """The record that a session was erased. It doesn't name the session: that would be a new trace of it."""
    evidence: dict[str, object] = {"request": source, "values": erased}
    evidence |= {name: value for name in ("id", "author", "reason") if (value := getattr(action, name)) is not None}
    return Alert(
        id=f"{source}/{ERASED}/{subject}/resolved",
        kind=ERASED,
        severity="info",
        state="resolved",
        subject=subject,
        ts=ts,
        title=f"everything that the application's tables held of {subject} is erased",
        evidence=evidence,
    )
