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
    "min_accuracy": (0, 1),
    "min_labelled": (1, 1e15),
}
"""Name -> its smallest and largest value. min_events: answers before anything is decided, and the promotion's
condition; max_error: share of its events that it gave no usable score for; max_p99: seconds, of the slowest worker;
min_agreement: share of its events for which the active version says the same label; min_confidence: mean;
min_accuracy: share of its labelled answers that were right; min_labelled: answers whose labels have come, before it is
promoted."""
WAITED: Final = frozenset({"min_events", "min_labelled"})
"""Limits that nothing breaks: they are waited for."""
FIRST_LOOK: Final = 100
"""Answers before a canary may be rolled back, or min_events if that is fewer: one bad event decides nothing."""


class Figures(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one worker counts of a version since it has had its role, as model-status tells it. Sums: two workers' add
    up."""

    answers: int = 0
    """Events that it gave a usable score for."""
    failures: int = 0
    """Events that it gave none for; of a canary also those that it refused, where the active version would not have."""
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
    labelled: int = 0
    """Answers of its role whose labels have come. By event, as labels do: a worker that restarts may hear of a label's
    correction alone, so sums can be a little off, below 0 even."""
    right: int = 0
    """Of these, it said the label; of regressors: within a hundredth."""
    loss: float = 0.0
    """Sum over the labelled ones: log loss; of regressors the squared error."""
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
            labelled=self.labelled + other.labelled,
            right=self.right + other.right,
            loss=self.loss + other.loss,
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

    @property
    def low_share(self) -> float | None:
        """Share of low confidence among the answers that have one."""
        return self.low / self.confident if self.confident else None

    @property
    def accuracy(self) -> float | None:
        """Share of the labelled answers that were right."""
        return min(1.0, max(0.0, self.right / self.labelled)) if self.labelled > 0 else None

    @property
    def mean_loss(self) -> float | None:
        """Log loss of the labelled answers; of regressors the mean squared error."""
        return max(0.0, self.loss / self.labelled) if self.labelled > 0 else None


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


class Standing(NamedTuple):
    """Where a version stands with one of its limits."""

    limit: str
    declared: float
    has: float | None
    """None: not known yet."""
    holds: bool | None
    """None: too early to tell."""


def standings(limits: Mapping[str, float], figures: Figures) -> list[Standing]:
    """Each limit beside the figure that it is about."""
    seen = figures.answers + figures.failures
    early = seen < _first(limits)
    known = {
        "min_events": (float(seen), False),
        "max_error": (figures.error, early),
        "max_p99": (figures.p99_s if seen else None, early),
        "min_agreement": (figures.agreement, early or figures.compared < _first(limits)),
        "min_confidence": (figures.mean_confidence, early),
        "min_accuracy": (figures.accuracy, early or figures.labelled < _first(limits)),
        "min_labelled": (float(figures.labelled), False),
    }
    found = []
    for name, declared in limits.items():
        has, unsettled = known.get(name, (None, True))  # a newer release may have others
        kept = None if has is None or unsettled else (has <= declared if name.startswith("max_") else has >= declared)
        found.append(Standing(name, declared, has, kept))
    return found


def judged(limits: Mapping[str, float], figures: Figures) -> Judgement | None:
    """What the limits say of a canary by now: nothing yet, or nothing ever where min_events isn't among them and all
    is well."""
    seen = figures.answers + figures.failures
    if not limits or seen < _first(limits):
        return None
    for one in standings(limits, figures):
        if one.holds is False and one.limit not in WAITED:
            why = f"{one.limit} is {one.declared:g}, it has {one.has:.4g} after {seen} events"
            return Judgement(Verdict.ROLLBACK, why)
    if wanting(limits, figures):
        return None
    return Judgement(Verdict.PROMOTE, f"{seen} events within the limits ({shown(limits)})")


def wanting(limits: Mapping[str, float], figures: Figures) -> list[str]:
    """What a canary that breaks no limit still lacks before it is promoted by itself."""
    seen, least = figures.answers + figures.failures, limits.get("min_events")
    if least is None:
        return ["it is never promoted by itself: min_events is not among its limits"]
    lacking = []
    if seen < least:
        lacking.append(f"min_events is {least:g}, it has {seen}")
    compared = _first(limits)
    if "min_agreement" in limits and figures.compared < compared:
        lacking.append(f"min_agreement takes {compared:g} compared events, it has {figures.compared}")
    if "min_accuracy" in limits and figures.labelled < compared:
        lacking.append(f"min_accuracy takes {compared:g} labelled events, it has {figures.labelled}")
    if figures.labelled < limits.get("min_labelled", 0):
        lacking.append(f"min_labelled is {limits['min_labelled']:g}, it has {figures.labelled}")
    return lacking


def shown(limits: Mapping[str, float]) -> str:
    """For people."""
    return ", ".join(f"{name} {value:g}" for name, value in limits.items())


def _first(limits: Mapping[str, float]) -> float:
    return min(FIRST_LOOK, limits.get("min_events", FIRST_LOOK))
