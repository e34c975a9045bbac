"""How a worker is doing right now, in plain numbers; and what only a clock can measure."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiokafka import TopicPartition

if TYPE_CHECKING:
    from engine.engine import Engine
    from engine.task import PartitionTask

TICK_S: Final = 0.1
KEPT_S: Final = 10.0
"""Seconds that rates and latencies are taken over."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One worker in one moment. Rates and latencies are those of the last ten seconds."""

    worker: str
    events_per_s: float
    """Whose commit has ended."""
    latency_p50_s: float | None
    latency_p99_s: float | None
    """From a record's timestamp to the end of its commit; None where there were no events."""
    lag: dict[str, dict[int, int]]
    """Topic -> open partition -> records that aren't committed yet."""
    commit_age_s: float
    """How long the oldest finished work waits for its commit."""
    dead_letters: int
    """Since the start."""
    partitions_open: list[int]
    partitions_opening: dict[int, str]
    """Partition -> why it isn't open."""
    models: dict[str, dict[str, Any]]
    """As on model-status: version, role, since, revision; loading, draining, error if any."""


class _Moment(NamedTuple):
    at: float
    committed: int
    latency: list[int]


class Pulse:
    """Looks at the worker ten times a second, and remembers the last ten seconds."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._moments: deque[_Moment] = deque([self._moment()])

    def _moment(self) -> _Moment:
        meters = self._engine.meters
        return _Moment(time.monotonic(), meters.committed.total(), list(meters.latency.counts))

    async def run(self) -> None:
        """Looks for ever."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            self.look(now - last)
            last = now

    def look(self, passed: float) -> None:
        """passed: seconds since the last look."""
        engine, meters = self._engine, self._engine.meters
        meters.loop_lag.observe(max(0.0, passed - TICK_S))
        for number, task in engine.tasks.items():
            if task.open and not all(map(task.room, task.topics)):
                meters.crowded[number] += passed
        moments = self._moments
        if time.monotonic() - moments[-1].at >= 1.0:
            moments.append(self._moment())
            while len(moments) > 1 and moments[-1].at - moments[0].at > KEPT_S:
                moments.popleft()

    def snapshot(self) -> Snapshot:
        """What the live page shows."""
        engine, meters = self._engine, self._engine.meters
        then, now = self._moments[0], self._moment()
        tasks = sorted(engine.tasks.items())
        return Snapshot(
            worker=engine.name,
            events_per_s=(now.committed - then.committed) / max(now.at - then.at, TICK_S),
            latency_p50_s=meters.latency.quantile(0.5, then.latency),
            latency_p99_s=meters.latency.quantile(0.99, then.latency),
            lag=self.lag(),
            commit_age_s=max((age(task) for _, task in tasks), default=0.0),
            dead_letters=meters.dead_letters.total(),
            partitions_open=[number for number, task in tasks if task.open],
            partitions_opening={number: task.reason for number, task in tasks if not task.open},
            models=engine.models.status(),
        )

    def lag(self) -> dict[str, dict[int, int]]:
        """Topic -> open partition -> records that aren't committed yet, as far as the broker's last answer tells."""
        found: dict[str, dict[int, int]] = {}
        for number, task in sorted(self._engine.tasks.items()):
            for topic in task.topics if task.open else ():
                tp = TopicPartition(topic, number)
                if (end := self._engine.end(tp)) is not None:
                    found.setdefault(topic, {})[number] = max(0, end - self._done(task, tp))
        return found

    def _done(self, task: PartitionTask, tp: TopicPartition) -> int:
        """Where what is committed ends. Where all of it is, markers of transactions that were read count too."""
        committed = max(task.committed.get(tp.topic, 0), self._engine.begins(tp))
        if committed < task.next_offset(tp.topic):
            return committed
        return max(committed, self._engine.reading_at(tp))


def age(task: PartitionTask) -> float:
    """Seconds that a partition's oldest finished work waits for its commit."""
    return 0.0 if task.waits_since is None else time.monotonic() - task.waits_since
