"""When a canary is good enough to take over, and when it has to go: limits that its deployment declares."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

LIMITS: Final[Mapping[str, tuple[float, float]]] = {
    "min_events": (1, 1e15),
    "max_error": (0, 1),
    "max_p99": (0, 3600),
    "min_agreement": (0, 1),
    "min_confidence": (0, 1),
}
"""Name -> its smallest and largest value. min_events: answers before anything is decided, and the promotion's
condition; max_error: share of its events that it gave no usable score for; max_p99: seconds, of the slowest worker;
min_agreement: share of its events for which the active version says the same label; min_confidence: mean."""
FIRST_LOOK: Final = 100
"""Answers before a canary may be rolled back, or min_events if that is fewer: one bad event decides nothing."""


class Figures(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one worker counts of a version since it has had its role, as model-status tells it. Sums: two workers' add
    up."""

    answers: int = 0
    """Events that it gave a usable score for."""
    failures: int = 0
    """Events that it gave none for."""
    confidence: float = 0.0
    """Sum over answers that have one."""
    confident: int = 0
    """Answers that have a confidence."""
    low: int = 0
    """Answers with low confidence."""
    compared: int = 0
    """Events that the other version was asked about too: the active one for a canary, and for a shadow."""
    agreed: int = 0
    """Of these, both said the same label; of regressors: values within a hundredth."""
    dropped: int = 0
    """Events that weren't compared since the worker was too busy."""
    p99_s: float = 0.0
    """Of the calls, in seconds."""

    def __add__(self, other: Figures) -> Figures:
        """Of two workers; the slower one's p99."""
        return Figures(
            answers=self.answers + other.answers,
            failures=self.failures + other.failures,
            confidence=self.confidence + other.confidence,
            confident=self.confident + other.confident,
            low=self.low + other.low,
            compared=self.compared + other.compared,
            agreed=self.agreed + other.agreed,
            dropped=self.dropped + other.dropped,
            p99_s=max(self.p99_s, other.p99_s),
        )

    @property
    def error(self) -> float | None:
        """Share of its events without a usable score; None: there were none."""
        events = self.answers + self.failures
        return self.failures / events if events else None

    @property
    def agreement(self) -> float | None:
        """Share of the compared events in which both agreed."""
        return self.agreed / self.compared if self.compared else None

    @property
    def mean_confidence(self) -> float | None:
        """Of the answers that have one."""
        return self.confidence / self.confident if self.confident else None


class Verdict(StrEnum):
    """What becomes of a canary."""

    PROMOTE = "promote"
    ROLLBACK = "rollback"


class Judgement(NamedTuple):
    """A verdict, and why."""

    verdict: Verdict
    why: str


def unknown(limits: Mapping[str, float]) -> str | None:
    """What is wrong with limits that somebody declares; None: nothing."""
    for name, value in limits.items():
        if name not in LIMITS:
            return f"limit {name!r} is none: there is {', '.join(LIMITS)}"
        least, most = LIMITS[name]
        if not least <= value <= most:
            return f"limit {name} is {value:g}: it must be between {least:g} and {most:g}"
    return None


def judged(limits: Mapping[str, float], figures: Figures) -> Judgement | None:
    """What the limits say of a canary by now: nothing yet, or nothing ever where min_events isn't among them and all
    is well."""
    seen, least = figures.answers + figures.failures, limits.get("min_events")
    if not limits or seen < min(FIRST_LOOK, least or FIRST_LOOK):
        return None
    if (why := _broken(limits, figures)) is not None:
        return Judgement(Verdict.ROLLBACK, why)
    if least is None or seen < least or ("min_agreement" in limits and figures.compared < min(least, FIRST_LOOK)):
        return None
    return Judgement(Verdict.PROMOTE, f"{seen} events within the limits ({_shown(limits)})")


def _broken(limits: Mapping[str, float], figures: Figures) -> str | None:
    checks = (
        ("max_error", figures.error, 1),
        ("max_p99", figures.p99_s, 1),
        ("min_agreement", figures.agreement if figures.compared >= FIRST_LOOK else None, -1),
        ("min_confidence", figures.mean_confidence, -1),
    )
    for name, value, sign in checks:
        limit = limits.get(name)
        if limit is not None and value is not None and sign * value > sign * limit:
            return f"{name} is {limit:g}, it has {value:.4g} after {figures.answers + figures.failures} events"
    return None


def _shown(limits: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in limits.items())
