"""The state machine is data: a reviewer checks arrows, and a missing one is a TransitionError."""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from core.errors import TransitionError
from models.engine import Arrays, Engine
from models.manifest import Manifest
from models.meter import ModelMeter
from models.scores import Scores
from models.sureness import Sureness


class Stage(StrEnum):
    """Where a version stands on one worker."""

    LOADING = "loading"
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
        Stage.LOADING: {Stage.VERIFIED, Stage.FAILED},  # hashes, signature, warm-up, golden examples
        Stage.VERIFIED: {Stage.SHADOW, Stage.CANARY, Stage.ACTIVE, Stage.UNLOADED},  # UNLOADED: overtaken meanwhile
        Stage.SHADOW: {Stage.CANARY, Stage.ACTIVE, Stage.DRAINING},
        Stage.CANARY: {Stage.ACTIVE, Stage.DRAINING},  # DRAINING: rolled back
        Stage.ACTIVE: {Stage.DRAINING},  # in the same step that makes its successor ACTIVE
        Stage.DRAINING: {Stage.ACTIVE, Stage.UNLOADED},  # ACTIVE: rolled back while warm; UNLOADED: nothing in flight
    }
)


class Course:
    """A version's way through the stages."""

    def __init__(self, who: str) -> None:
        self.who = who
        self.stage = Stage.LOADING
        self.since = now_ms()
        """ms since epoch: when it reached this stage."""

    def to(self, stage: Stage) -> None:
        """Takes one arrow. Raises TransitionError when there is none, and stays where it is."""
        if stage not in ARROWS[self.stage]:
            allowed = ", ".join(sorted(ARROWS[self.stage])) or "nothing"
            raise TransitionError(f"{self.who} is {self.stage} and can't become {stage}; it can become {allowed}")
        self.stage = stage
        self.since = now_ms()


class LiveVersion:
    """A verified version, held by everybody who computes on it: it is freed when it drains and the last lets go."""

    def __init__(self, manifest: Manifest, engine: Engine, course: Course) -> None:
        self.manifest = manifest
        self.engine = engine
        self.course = course
        self.in_flight = 0
        self.meter = ModelMeter()
        self.sureness = Sureness()
        course.to(Stage.VERIFIED)

    @property
    def version(self) -> str:
        """As the store names it."""
        return self.manifest.version

    @property
    def identity(self) -> str:
        """sha256 of its bytes: what caches are keyed by."""
        return self.engine.identity

    async def predict(self, inputs: Arrays) -> Scores:
        """Computes rows: ONNX input -> (n, number of its fields). Hold the version meanwhile, with LiveModels.using.

        Raises what the engine raises for these rows.
        """
        began = time.perf_counter()
        try:
            outputs = await self.engine.run(inputs)
        except Exception:
            self.meter.failures += 1
            raise
        took = time.perf_counter() - began
        scores = Scores.of(self.manifest, outputs)
        self.meter.answered(len(scores), took)
        self.sureness = self.sureness.and_of(scores)
        return scores

    def hold(self) -> None:
        """One more computes on it."""
        self.in_flight += 1

    def release(self) -> None:
        """One fewer does."""
        self.in_flight -= 1
        self._free_when_idle()

    def retire(self) -> None:
        """Takes no new work from now on; freed at once, or when the last who holds it lets go."""
        self.course.to(Stage.UNLOADED if self.course.stage is Stage.VERIFIED else Stage.DRAINING)
        if self.course.stage is Stage.UNLOADED:
            self.engine.close()
        self._free_when_idle()

    def _free_when_idle(self) -> None:
        if self.course.stage is Stage.DRAINING and self.in_flight == 0:
            self.course.to(Stage.UNLOADED)
            self.engine.close()


def now_ms() -> int:
    """The wall clock: stages are told to people, never used to order anything."""
    return time.time_ns() // 1_000_000
