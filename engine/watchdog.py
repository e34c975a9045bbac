"""Consumers that die quietly are what people fear of Faust: here silence is noticed, told, and ends the process."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from aiokafka import TopicPartition

from core.errors import HomunculusError, RightsError, WatchdogError
from engine.admission import REFUSED, in_words

if TYPE_CHECKING:
    from engine.engine import Engine

LOOK_S: Final = 5.0
JOIN_S: Final = 120.0
"""Seconds that the group may leave us out."""
COMMIT_S: Final = 120.0
"""Seconds that finished work may wait for its commit."""
READ_S: Final = 120.0
"""Seconds that an open partition with room and lag may go without a record."""


class Watchdog:
    """Looks at the engine from outside. look() returns what is wrong, or None."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._member_at = time.monotonic()
        self._moved: dict[TopicPartition, tuple[int, float]] = {}

    async def run(self) -> None:
        """Looks for ever; the first thing that is wrong ends the process."""
        while self._engine.dying is None:
            await asyncio.sleep(LOOK_S)
            if (wrong := self.look(time.monotonic())) is not None:
                self._engine.fatal(wrong)

    def look(self, now: float) -> HomunculusError | None:
        """now: a monotonic clock's seconds."""
        engine = self._engine
        if not engine.started_consuming:
            return None
        consumer = engine.consumer
        for what, task in (
            ("group", consumer._coordinator._coordination_task),
            ("fetch", consumer._fetcher._fetch_task),
        ):
            if task is not None and task.done() and not consumer._closed:
                return WatchdogError(
                    f"the consumer's {what} task has ended; restarting is the only way back (see the lines above; two "
                    "workers with one HOMUNCULUS_WORKER_ID end so too)"
                )
        if (wrong := engine.grown() or _refused(consumer)) is not None:
            return wrong
        if consumer._coordinator.generation >= 0:  # the embedded broker counts from 0; out of the group it is -1
            self._member_at = now
        elif now - self._member_at > JOIN_S:
            return WatchdogError(
                f"the group has not taken this worker for {now - self._member_at:.0f} s (see the lines above: a "
                "HOMUNCULUS_SESSION_TIMEOUT that the broker refuses, or missing rights?)"
            )
        for number, partition in engine.tasks.items():
            if not partition.open:
                continue
            if (since := partition.waits_since) is not None and now - since > COMMIT_S:
                return WatchdogError(f"partition {number} has not committed for {now - since:.0f} s")
            for topic in partition.topics:
                tp = TopicPartition(topic, number)
                # Where it reads, not what it has accepted: markers of transactions are passed without a record.
                offset = max(partition.next_offset(topic), engine.reading_at(tp))
                before, since = self._moved.get(tp, (-1, now))
                if before != offset or not partition.room(topic) or _highwater(consumer, tp) <= offset:
                    self._moved[tp] = (offset, now)
                elif now - since > READ_S:
                    return WatchdogError(
                        f"{topic}/{number} has records after {offset} but none came for {now - since:.0f} s"
                    )
        return None


def _highwater(consumer: Any, tp: TopicPartition) -> int:
    """Where the partition ends, as far as is known; 0 between two assignments, while its task goes on."""
    return (consumer.highwater(tp) or 0) if tp in consumer.assignment() else 0


def _refused(consumer: Any) -> RightsError | None:
    refused = consumer._coordinator._pending_exception
    return RightsError(in_words(refused)) if isinstance(refused, REFUSED) else None
