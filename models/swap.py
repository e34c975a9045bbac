"""The state machine is data: a reviewer checks arrows, and a missing one is a TransitionError."""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from core.errors import TransitionError


class Stage(StrEnum):
    """Where a version stands on one worker."""

    DOWNLOADING = "downloading"
    VERIFYING = "verifying"
    WARMING = "warming"
    VERIFIED = "verified"
    SHADOW = "shadow"
    CANARY = "canary"
    ACTIVE = "active"
    DRAINING = "draining"
    UNLOADED = "unloaded"
    FAILED = "failed"


def arrows(known: Mapping[Stage, set[Stage]]) -> Mapping[Stage, frozenset[Stage]]:
    """The arrows with every stage as a key: one that isn't named is an end."""
    return {stage: frozenset(known.get(stage, ())) for stage in Stage}


ARROWS: Final[Mapping[Stage, frozenset[Stage]]] = arrows(
    {
        Stage.DOWNLOADING: {Stage.VERIFYING, Stage.FAILED},  # and hashes
        Stage.VERIFYING: {Stage.WARMING, Stage.FAILED},  # the graph and its signature
        Stage.WARMING: {Stage.VERIFIED, Stage.FAILED},  # a first run, and golden examples
        Stage.VERIFIED: {Stage.SHADOW, Stage.CANARY, Stage.ACTIVE, Stage.UNLOADED},  # UNLOADED: overtaken meanwhile
        # Deployments may be skipped on the way to the newest one, so every role leads to every other.
        Stage.SHADOW: {Stage.CANARY, Stage.ACTIVE, Stage.DRAINING},
        Stage.CANARY: {Stage.SHADOW, Stage.ACTIVE, Stage.DRAINING},  # DRAINING: rolled back
        Stage.ACTIVE: {Stage.SHADOW, Stage.CANARY, Stage.DRAINING},  # in the step that makes its successor ACTIVE
        # A role: wanted again while it is warm. UNLOADED: nothing in flight.
        Stage.DRAINING: {Stage.SHADOW, Stage.CANARY, Stage.ACTIVE, Stage.UNLOADED},
    }
)


class Course:
    """A version's way through the stages."""

    def __init__(self, who: str) -> None:
        self.who = who
        self.stage = Stage.DOWNLOADING
        self.since = now_ms()
        """ms since epoch: when it reached this stage."""
        self.share: float | None = None
        """Of its files that are here, while they are copied."""

    def downloaded(self, here: int, total: int | None) -> None:
        """So many bytes of its files are here. Called from any thread."""
        self.share = here / total if total else None

    def to(self, stage: Stage) -> None:
        """Takes one arrow. Raises TransitionError when there is none, and stays where it is."""
        if stage not in ARROWS[self.stage]:
            allowed = ", ".join(sorted(ARROWS[self.stage])) or "nothing"
            raise TransitionError(f"{self.who} is {self.stage} and can't become {stage}; it can become {allowed}")
        self.stage = stage
        self.since = now_ms()
        self.share = None


def now_ms() -> int:
    """The wall clock: stages are told to people, never used to order anything."""
    return time.time_ns() // 1_000_000
