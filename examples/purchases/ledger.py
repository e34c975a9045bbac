"""What was sent and what came back for it: the demo's own books, from which every figure of its summary is taken."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from core.events import Alert, Observation, Prediction
from examples.purchases.labels import Judge

RECENT: Final = 5000
"""Answers that the latencies shown on the way are of."""


class Answer(Prediction, gc=False, omit_defaults=True):
    """A prediction as those who read it know it."""

    scores: dict[str, float]


@dataclass(slots=True)
class Reign:
    """The events of one partition that one version answered."""

    first: int
    """Offset of the first one on the input topic."""
    last: int
    answers: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the replay is."""

    answered: int
    of: int
    rate: float
    """Answers per second since the last look."""
    p50_ms: float
    p99_ms: float
    """From sending an event to having read its prediction, of the last answers."""
    sessions: int
    alerts: int
    version: str
    """Of the newest answer."""


class Ledger:
    """Every event by its place in the stream. Times are of the monotonic clock."""

    def __init__(self, events: Sequence[Observation]) -> None:
        n = len(events)
        self.events = events
        self.sent = 0
        self.answered = 0
        """Events with a prediction, each counted once."""
        self.contradictions = 0
        """Predictions under a second id for an event, or for an event that nobody sent."""
        self.latest: dict[str, Answer] = {}
        """session -> the newest answer."""
        self.alerts: list[Alert] = []
        self.refused: list[str] = []
        """Why events became dead letters."""
        self.reigns: dict[str, dict[int, Reign]] = {}
        """version -> partition -> what it answered."""
        self.first_event: dict[str, int] = {}
        """version -> the earliest event of the stream that it answered, from 1."""
        self.first_at: dict[str, float] = {}
        """version -> when its first answer was read."""
        self.judge = Judge()
        self.moved = asyncio.Event()
        """Set when answers have come."""
        self._places = {event.id: place for place, event in enumerate(events)}
        self._ids: list[str | None] = [None] * n
        self._sent_at = np.zeros(n)
        self._latency_ms = np.full(n, np.nan)
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._version = "-"
        self._started = self._ended = self._looked = 0.0
        self._seen = 0

    @property
    def waiting(self) -> int:
        """Events that were sent and have neither an answer nor a dead letter yet."""
        return self.sent - self.answered - len(self.refused)

    @property
    def complete(self) -> bool:
        """Whether every event has its prediction."""
        return self.answered == len(self.events)

    @property
    def repeats(self) -> int:
        """Predictions that came again with the same id."""
        return self.judge.repeats

    @property
    def rate(self) -> float:
        """Events per second, from the first one sent to the last one answered."""
        return self.answered / max(self._ended - self._started, 1e-9)

    def sending(self, start: int, end: int) -> None:
        """These events leave now."""
        now = time.monotonic()
        if not self.sent:
            self._started = self._looked = now
        self._sent_at[start:end] = now
        for event in self.events[start:end]:
            self.judge.bought(event)
        self.sent = end

    def read(self, predictions: Sequence[Answer]) -> None:
        """These predictions have just been read, in the order of their partitions."""
        now = self._ended = time.monotonic()
        for prediction in predictions:
            self.judge.predicted(prediction)
            place = self._places.get(prediction.event_id)
            if place is None or self._ids[place] not in {None, prediction.id}:
                self.contradictions += 1
            elif self._ids[place] is None:
                self._first_answer(place, prediction, now)
        if predictions:
            self.moved.set()

    def _first_answer(self, place: int, prediction: Answer, now: float) -> None:
        self._ids[place] = prediction.id
        self.answered += 1
        self._latency_ms[place] = waited = (now - self._sent_at[place]) * 1e3
        self._recent.append(waited)
        self.latest[prediction.session] = prediction
        version = self._version = prediction.version
        _, partition, offset = prediction.id.rsplit("/", 2)
        at = int(offset)
        reign = self.reigns.setdefault(version, {}).setdefault(int(partition), Reign(at, at))
        reign.first, reign.last, reign.answers = min(reign.first, at), max(reign.last, at), reign.answers + 1
        self.first_at.setdefault(version, now)
        self.first_event[version] = min(self.first_event.get(version, place + 1), place + 1)

    def latency_ms(self, percentile: float) -> float:
        """Of all answers."""
        return float(np.nanpercentile(self._latency_ms, percentile))

    def answers_of(self, version: str) -> int:
        """How many events the version answered."""
        return sum(reign.answers for reign in self.reigns.get(version, {}).values())

    def clean_change(self, before: str, after: str) -> bool:
        """Whether each partition went from one version to the other once, and every event around it has its answer:
        the offsets that the two answered join without a gap."""
        old, new = self.reigns.get(before, {}), self.reigns.get(after, {})
        whole = all(r.answers == r.last - r.first + 1 for reigns in (old, new) for r in reigns.values())
        return whole and bool(new) and all(old[n].last + 1 == new[n].first for n in old.keys() & new.keys())

    def progress(self) -> Progress:
        """How far it is now; the rate is that since the last call."""
        now = time.monotonic()
        rate = (self.answered - self._seen) / max(now - self._looked, 1e-9) if self.sent else 0.0
        self._looked, self._seen = now, self.answered
        p50, p99 = np.percentile(self._recent, [50, 99]) if self._recent else (0.0, 0.0)
        return Progress(
            self.answered, len(self.events), rate, p50, p99, len(self.latest), len(self.alerts), self._version
        )
