"""What a worker did in each second of the last five minutes, so that a page has it when it is opened."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final

import msgspec

from engine.engine import Engine
from models.sureness import Sureness

LENGTH: Final = 300
"""Samples kept, a second each."""
LATENCY_S: Final = 5
"""Seconds that a sample's latencies look back: in one alone there may be a handful."""


class Rated(msgspec.Struct, frozen=True):
    """How sure one version of a model was, in one second."""

    count: int
    mean: float
    low: int
    """Answers with low confidence."""


class Sample(msgspec.Struct, frozen=True):
    """One second."""

    t: int
    """Its end, seconds since epoch."""
    rate: float
    """Events whose commit has ended, a second."""
    p50: float | None = None
    p99: float | None = None
    """ms from an event's timestamp to the end of its commit; None where there were none."""
    confidence: dict[str, Rated] = {}
    """model@version -> how sure it was; those that have answered."""


class History:
    """The newest samples of one worker."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._samples: deque[Sample] = deque(maxlen=LENGTH)
        self._latencies: deque[list[int]] = deque(maxlen=LATENCY_S)
        self._latencies.append(list(engine.meters.latency.counts))
        self._events = engine.meters.committed.total()
        self._answers: dict[str, Sureness] = {}
        self._at = time.monotonic()

    async def run(self) -> None:
        """Takes a sample at the end of every second, for ever."""
        while True:
            await asyncio.sleep(1 - time.time() % 1)
            self.take(round(time.time()), time.monotonic())

    def take(self, t: int, now: float) -> None:
        """Adds a sample of what was done since the last one. t: seconds since epoch; now: a monotonic clock's."""
        if self._samples and self._samples[-1].t >= t:
            return  # the clock was set back, or the timer came a moment early
        meters = self._engine.meters
        events, latency = meters.committed.total(), meters.latency
        rate = (events - self._events) / max(now - self._at, 1e-3)
        p50, p99 = (_ms(latency.quantile(q, self._latencies[0])) for q in (0.5, 0.99))
        self._events, self._at = events, now
        self._latencies.append(list(latency.counts))
        self._samples.append(Sample(t, round(rate, 1), p50, p99, self._rated()))

    def since(self, t: int) -> list[Sample]:
        """Samples after a second, oldest first."""
        return [sample for sample in self._samples if sample.t > t]

    def _rated(self) -> dict[str, Rated]:
        before = self._answers
        self._answers = {f"{v.manifest.name}@{v.version}": v.sureness for v in self._engine.models.versions()}
        rated = {}
        for who, sureness in self._answers.items():
            new = sureness.since(before.get(who))
            if new.answers:
                rated[who] = Rated(new.answers, round(new.total / new.answers, 4), new.low)
        return rated


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e3 * seconds, 1)
