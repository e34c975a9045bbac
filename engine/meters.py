"""What a worker has done since it started, as plain numbers: a batch or a commit adds to them, never an event."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from core.histogram import Histogram

if TYPE_CHECKING:
    from engine.batch import Batch, Slice, Staged
    from engine.outputs import Builders
    from engine.spans import EventSpan

LATENCY_S: Final = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 3600.0),
)
"""Close enough to each other to read a p99 from."""
STAGE_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 60.0),
)
BATCH: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 4000.0)
LOOP_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Finished(NamedTuple):
    """A slice whose commit is still to come."""

    topic: str
    events: int
    oldest: int
    youngest: int
    """Timestamps of its first and last record, ms since epoch."""
    at: float
    """When it was finished, monotonic."""
    trace: str | None
    spans: Sequence[EventSpan]

    @classmethod
    def of(cls, s: Slice[Any], now: float) -> Finished:
        """A slice that has become part of the finished prefix."""
        return cls(s.topic, s.size, s.oldest, s.youngest, now, s.trace, s.spans)


class Meters:
    """Counters and histograms of one worker. Only its event loop writes and reads them."""

    def __init__(self) -> None:
        self.read: Counter[str] = Counter()
        """Topic -> records that its agent was given."""
        self.committed: Counter[str] = Counter()
        """Topic -> records whose commit has ended."""
        self.outputs: Counter[str] = Counter()
        """Topic -> records that were written to it."""
        self.dead_letters: Counter[tuple[str, str]] = Counter()
        """Source topic and error class -> dead letters."""
        self.late: Counter[str] = Counter()
        """Source topic -> records that were too late."""
        self.reopened = 0
        """How often a partition was given up and opened anew."""
        self.latency = Histogram(LATENCY_S)
        """Seconds from a record's timestamp to the end of its commit."""
        self.stages: dict[str, Histogram] = {}
        """Stage -> seconds that an event spent in it."""
        self.batches = Histogram(BATCH)
        """Records that an agent was given at once."""
        self.commits = Histogram(STAGE_S)
        """Seconds from taking what is finished to the end of its commit."""
        self.loop_lag = Histogram(LOOP_S)
        """Seconds that the event loop was late for a timer."""
        self.crowded: defaultdict[int, float] = defaultdict(float)
        """Partition -> seconds, about, in which it had no room for more."""
        self._ended = -math.inf

    def stage(self, name: str, seconds: float, events: int, trace: str | None = None) -> None:
        """So many events have spent so long in a stage."""
        if name not in self.stages:
            self.stages[name] = Histogram(STAGE_S)
        self.stages[name].observe(seconds, events, trace)

    def begun(self, slices: Iterable[Slice[Any]]) -> None:
        """An agent begins to work on these."""
        now, clock = time.monotonic(), time.time()
        size = 0
        for s in slices:
            size += s.size
            self.read[s.topic] += s.size
            waited = now - s.accepted_at
            if s.oldest >= 0:  # else its producer has given it no time
                arrived = clock - waited - (s.oldest + s.youngest) / 2e3
                self.stage("arrive", max(0.0, arrived), s.size, s.trace)
            self.stage("queue", waited, s.size, s.trace)
        if size:
            self.batches.observe(size)

    def worked(self, batch: Batch[Any]) -> None:
        """An agent is through with a batch."""
        trace = next((s.trace for s in batch.slices if s.trace is not None), None)
        for name, seconds in batch.laps.items():
            self.stage(name, seconds, batch.size, trace)

    def dropped(self, source: str, letter: Staged) -> None:
        """A record of a source topic became a dead letter, or was late."""
        error = dict(letter.headers[0]).get("error")
        if error is None:
            self.late[source] += 1
        else:
            self.dead_letters[source, error.decode()] += 1

    def sent(self, outputs: Builders) -> None:
        """The broker has these outputs."""
        for target, batches in outputs.items():
            self.outputs[target.topic] += sum(batch.record_count() for batch in batches)

    def commit_ended(self, taken_at: float, finished: Iterable[Finished]) -> None:
        """A partition's part of a commit has ended. Those of one commit were all taken before the first ended."""
        now, clock = time.monotonic(), time.time() * 1e3
        if taken_at > self._ended:
            self.commits.observe(now - taken_at)
        self._ended = now
        for topic, events, oldest, youngest, at, trace, spans in finished:
            self.committed[topic] += events
            if oldest >= 0:
                younger = events // 2
                self.latency.observe(max(0.0, clock - oldest) / 1e3, events - younger, trace)
                self.latency.observe(max(0.0, clock - youngest) / 1e3, younger)
            self.stage("commit", now - at, events, trace)
            for span in spans:
                span.end()
