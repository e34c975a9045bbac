"""A verified version on this worker: what it is, who computes on it, and how it does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from core.errors import UsageError
from models.budget import Share
from models.decoder.adapter import Adapter
from models.decoder.decoder import Decoder
from models.engine import Arrays, Engine, rows_of
from models.limits import Figures
from models.manifest import Manifest
from models.meter import ModelMeter
from models.precision import FP32
from models.scores import Scores
from models.sureness import Sureness
from models.swap import Course, Stage

Load = tuple[str, str]
"""What has to be loaded: version, precision."""


@dataclass(slots=True)
class Compared:
    """Events that two versions were asked about."""

    events: int = 0
    agreed: int = 0
    dropped: int = 0
    """Events that there was no time for."""


@dataclass(slots=True)
class Labelled:
    """Answers of its role whose labels have come. Sums; corrections take back what they correct."""

    answers: int = 0
    right: int = 0
    loss: float = 0.0
    """Log loss, or squared error."""

    def add(self, weight: int, right: bool, loss: float) -> None:
        """One outcome; -1 takes it back."""
        self.answers += weight
        self.right += weight * right
        self.loss += weight * loss


class Tallies(NamedTuple):
    """Where a version's counters stood when its role began."""

    sureness: Sureness = Sureness()
    answers: int = 0
    broken: int = 0
    seconds: tuple[int, ...] | None = None


class LiveVersion:
    """A verified version, held by everybody who computes on it: it is freed when it drains and the last lets go."""

    def __init__(
        self,
        manifest: Manifest,
        engine: Engine | Decoder | Adapter,
        course: Course,
        precision: str = FP32,
        share: Share | None = None,
    ) -> None:
        """precision: which of its files the engine computes. share: what that holds of a device's memory, if somebody
        counts."""
        self.manifest = manifest
        self.engine = engine
        self.course = course
        self.precision = precision
        self.freed = asyncio.Event()
        """Set once nothing of it is in memory."""
        self._share = share
        self.in_flight = 0
        self.meter = ModelMeter()
        self.sureness = Sureness()
        self.compared = Compared()
        self.labelled = Labelled()
        self._tallies = Tallies()
        course.to(Stage.VERIFIED)

    @property
    def version(self) -> str:
        """As the store names it."""
        return self.manifest.version

    @property
    def identity(self) -> str:
        """sha256 of its bytes: what caches are keyed by."""
        return self.engine.identity

    @property
    def load(self) -> Load:
        """What had to be loaded for it: version and precision."""
        return self.version, self.precision

    @property
    def memory(self) -> int | None:
        """Bytes that it holds of a device's memory; None where nobody counts."""
        return None if self._share is None else self._share.size

    def begin(self, role: Stage) -> None:
        """It answers in this role from now on, and its figures begin anew."""
        if self.course.stage is not role:
            self.course.to(role)
            self.compared = Compared()
            self.labelled = Labelled()
            self._tallies = Tallies(
                self.sureness, self.meter.answers, self.meter.broken, tuple(self.meter.seconds.counts)
            )

    @property
    def figures(self) -> Figures:
        """What it has done in its role."""
        then, meter = self._tallies, self.meter
        sure = self.sureness.since(then.sureness)
        return Figures(
            answers=meter.answers - then.answers,
            failures=meter.broken - then.broken,
            confidence=sure.total,
            confident=sure.answers,
            low=sure.low,
            compared=self.compared.events,
            agreed=self.compared.agreed,
            dropped=self.compared.dropped,
            labelled=self.labelled.answers,
            right=self.labelled.right,
            loss=self.labelled.loss,
            p99_s=meter.seconds.quantile(0.99, then.seconds) or 0.0,
        )

    async def predict(self, inputs: Arrays, *, aside: bool = False) -> Scores:
        """Computes rows: ONNX input -> (n, number of its fields). Hold the version meanwhile, with LiveModels.using.

        aside: nobody waits for these; they let others pass. Raises what the engine raises for these rows.
        """
        began = time.perf_counter()
        try:
            scores = await self.compute(inputs, aside=aside)
        except Exception:
            self.meter.failures += 1
            self.meter.broken += rows_of(inputs)
            raise
        self.meter.answered(len(scores), len(scores.broken), time.perf_counter() - began)
        self.sureness = self.sureness.and_of(scores)
        return scores

    async def compute(self, inputs: Arrays, *, aside: bool) -> Scores:
        """As predict(), for a comparison: its figures don't count it."""
        if isinstance(self.engine, Decoder | Adapter):
            raise UsageError(f"{self.manifest.identity} is a {self.manifest.kind}: it is for messages")
        return Scores.of(self.manifest, await self.engine.run(inputs, aside=aside))

    @contextmanager
    def held(self) -> Iterator[None]:
        """One more computes on it until the block ends."""
        self.hold()
        try:
            yield
        finally:
            self.release()

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
            self._free()
        self._free_when_idle()

    def _free_when_idle(self) -> None:
        if self.course.stage is Stage.DRAINING and self.in_flight == 0:
            self.course.to(Stage.UNLOADED)
            self._free()

    def _free(self) -> None:
        self.engine.close()
        self.freed.set()
