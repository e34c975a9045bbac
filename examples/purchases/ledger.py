"""What was sent and what came back for it: the demo's own books, from which every figure of its summary is taken."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from core.events import Alert, Observation, Prediction
from examples.purchases.labels import RETURNS, Judge

RECENT: Final = 5000
"""Answers that the latencies shown on the way are of."""


class Answer(Prediction, gc=False, omit_defaults=True):
    """A prediction as those who read it know it."""

    scores: dict[str, float]


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
        self.alerts: dict[str, Alert] = {}
        """By their ids: what comes twice is one."""
        self.refused: list[str] = []
        """Why events became dead letters."""
        self.labels = 0
        """Labels that were sent."""
        self.answered_by: list[str | None] = [None] * n
        """Place of an event -> the version that answered it."""
        self.canary = np.zeros(n, np.bool_)
        """(n,): whether that was as a canary."""
        self.scores = np.full(n, np.nan)
        """(n,): what it gave for `returns`."""
        self.first_event: dict[str, int] = {}
        """version -> the earliest event of the stream that it answered, from 1."""
        self.first_at: dict[str, float] = {}
        """version -> when its first answer was read."""
        self.judge = Judge()
        self.moved = asyncio.Event()
        """Set when answers have come."""
        self._places = {event.id: place for place, event in enumerate(events)}
        self._ids: list[str | None] = [None] * n
        self._stands = np.full((n, 2), -1, np.int64)
        """(n, 2): partition and offset of each event."""
        self._sent_at = np.zeros(n)
        self._read_at = np.full(n, np.nan)
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._version = "-"
        self._started = self._looked = 0.0
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

    def rate(self, end: int) -> float:
        """Events per second of those before a place, from the first one sent to the last one answered."""
        read = self._read_at[:end][np.isfinite(self._read_at[:end])]
        return len(read) / max(float(read.max()) - self._started, 1e-9) if len(read) else 0.0

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
        now = time.monotonic()
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
        self._read_at[place] = now
        self._recent.append((now - self._sent_at[place]) * 1e3)
        self.latest[prediction.session] = prediction
        version = self._version = prediction.version
        _, partition, offset = prediction.id.rsplit("/", 2)
        self._stands[place] = int(partition), int(offset)
        self.answered_by[place] = version
        self.canary[place] = prediction.role == "canary"
        self.scores[place] = prediction.scores[RETURNS]
        self.first_at.setdefault(version, now)
        self.first_event[version] = min(self.first_event.get(version, place + 1), place + 1)

    def latency_ms(self, percentile: float) -> float:
        """Of all answers."""
        return float(np.nanpercentile((self._read_at - self._sent_at) * 1e3, percentile))

    @property
    def versions(self) -> list[str]:
        """Those that have answered, in the order of their first answers."""
        return sorted(self.first_at, key=lambda version: self.first_at[version])

    def of(self, version: str, *, canary: bool | None = None) -> NDArray[np.intp]:
        """Places of the events that a version answered, as a canary or not."""
        theirs = np.array([by == version for by in self.answered_by], np.bool_)
        return np.flatnonzero(theirs if canary is None else theirs & (self.canary == canary))

    def first_offsets(self, version: str) -> dict[int, int]:
        """Partition -> offset of the first event there that it answered."""
        found: dict[int, int] = {}
        for partition, offset in self._stands[self.of(version)].tolist():
            found[partition] = min(offset, found.get(partition, offset))
        return dict(sorted(found.items()))

    def courses(self) -> dict[int, str]:
        """Partition -> who answered its events, in their order, a letter each: the version's last one, c for a canary,
        - for nobody."""
        courses: dict[int, str] = {}
        partition, offset = self._stands.T
        for number in np.unique(partition[partition >= 0]).tolist():
            theirs = np.flatnonzero(partition == number)
            letters = ["-"] * (int(offset[theirs].max()) + 1)
            for place in theirs.tolist():
                letters[int(offset[place])] = "c" if self.canary[place] else str(self.answered_by[place])[-1]
            courses[number] = "".join(letters)
        return courses

    def progress(self) -> Progress:
        """How far it is now; the rate is that since the last call."""
        now = time.monotonic()
        rate = (self.answered - self._seen) / max(now - self._looked, 1e-9) if self.sent else 0.0
        self._looked, self._seen = now, self.answered
        p50, p99 = np.percentile(self._recent, [50, 99]) if self._recent else (0.0, 0.0)
        return Progress(
            self.answered, len(self.events), rate, p50, p99, len(self.latest), len(self.alerts), self._version
        )
