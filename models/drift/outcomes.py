"""What came of predictions, once labels arrive."""

from __future__ import annotations

import msgspec


class Outcome(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A prediction of one version and what was true, or what was believed to be true and no longer is."""

    ts: int
    """Event time of the observation, ms since epoch."""
    source: str
    """Of the observation."""
    label: int
    """What was true, by its place in the manifest; 0 of regressors."""
    scores: tuple[float, ...]
    """A probability a label; of regressors: the value."""
    truth: float | None = None
    """Of regressors: the true value."""
    weight: int = 1
    """-1 takes one back that was told before: the label has been corrected."""


class Outcomes(msgspec.Struct, tag="outcomes", array_like=True, frozen=True, gc=False):
    """Of one version, as feedback came."""

    partition: int
    """Of the feedback."""
    offset: int
    """Of the newest record of feedback in it."""
    outcomes: tuple[Outcome, ...]
    offsets: tuple[int, ...] = ()
    """Of the record that each outcome came with, never falling: who has seen some of them leaves those out."""
    topic: str = "feedback"
    """Where these stand: `observations`, where an event was answered after feedback about it had come."""
