"""Something that may be wrong with a model: told once when it begins, gets worse, or ends, not at every look."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

State = Literal["opened", "worsened", "resolved"]

REMIND_MS: Final = 24 * 3600 * 1000
"""Of event time, after which a condition that goes on is told again; twice as long after each time."""
REMIND_MOST: Final = 5
"""Doublings: at last every 32 days."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What a person should hear of; an alert is made of it."""

    kind: str
    """drift, drift_suspected, drift_warning, low_confidence_share, input_drift, ..."""
    subject: str
    """NAME@VERSION, or NAME@VERSION/FEATURE."""
    state: State
    severity: Literal["info", "warning", "critical"]
    ts: int
    """Event time of the answer that decided, ms since epoch."""
    source: str
    """Where the observation of that answer stands: with kind, subject and state it makes the alert's id."""
    title: str
    """One sentence that a person can act on."""
    evidence: dict[str, object]
    """JSON: which window, values against the reference, statistic and critical value, histograms, examples."""
    reminder: bool = False
    """Whether it was told before, and goes on."""


class Condition(msgspec.Struct):
    """One of them, with its memory. Part of a detector's state."""

    level: int = 0
    """0: all is well; 1: opened; 2 and more: worsened so often."""
    calm: int = 0
    """Looks in a row that found nothing wrong, while it is open."""
    told: int = 0
    """Event time at which a person was told last."""
    since: int = 0
    """Event time at which it opened."""
    reminders: int = 0
    """Since it was opened or got worse."""
    by: str = ""
    """Who knows of it: nobody is reminded."""

    def see(self, level: int, ts: int, calm: int) -> tuple[State, bool] | None:
        """A look at it, at event time ts: what a person is to be told, and whether that is a reminder; None: nothing.

        level: how bad it is now, 0 for well; calm: so many looks in a row must find nothing before it has ended.
        """
        if level == 0:
            if self.level == 0:
                return None
            self.calm += 1
            if self.calm < calm:
                return None
            self.end(ts)
            return "resolved", False
        self.calm = 0
        if level > self.level:
            state: State = "worsened" if self.level else "opened"
            if not self.level:
                self.since = ts
            self.level, self.told, self.reminders, self.by = level, ts, 0, ""
            return state, False
        if self.by or ts - self.told < REMIND_MS << min(self.reminders, REMIND_MOST):
            return None
        self.told, self.reminders = ts, self.reminders + 1
        return ("opened" if self.level == 1 else "worsened"), True

    def end(self, ts: int) -> None:
        """It is over, at event time ts."""
        self.level, self.calm, self.told, self.since, self.reminders, self.by = 0, 0, ts, 0, 0, ""
