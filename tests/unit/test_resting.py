"""A topic whose partitions rest: what comes meanwhile is read in one go, and nothing is left behind."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from aiokafka import TopicPartition

from engine.batch import Slice
from engine.transport import BEHIND, TaskConsumer

SCORES = TopicPartition("scores", 3)
REST_S = 0.05


class Reader:
    """A consumer under test, with the fetches and the tasks that a test gives it."""

    def __init__(self) -> None:
        self.paused: set[TopicPartition] = set()
        self.resumed = asyncio.Event()
        self.task = SimpleNamespace(open=True, next_offset=lambda topic: 0, accept=self._accept)
        engine = SimpleNamespace(rests={"scores": REST_S}, tasks={3: self.task})
        kafka = SimpleNamespace(
            pause=self.paused.add,
            resume=self._resume,
            _subscription=SimpleNamespace(is_assigned=lambda tp: True),
        )
        self.consumer: Any = SimpleNamespace(engine=engine, kafka=kafka)
        self.consumer._rested = lambda tp: TaskConsumer._rested(cast(Any, self.consumer), tp)

    def _accept(self, topic: str, records: list[Any]) -> list[Slice[Any]]:
        return [cast(Any, SimpleNamespace(size=len(records), weight=sum(len(r.value) for r in records)))]

    def _resume(self, tp: TopicPartition) -> None:
        self.paused.discard(tp)
        self.resumed.set()

    def read(self, topic: str, size: int) -> None:
        """A fetch with one record of so many bytes."""
        chunks = {TopicPartition(topic, 3): [[SimpleNamespace(offset=0, value=bytes(size))]]}
        assert len(list(TaskConsumer._accept(self.consumer, cast(Any, chunks), current=True))) == 1


async def test_a_partition_that_was_read_rests_and_is_read_again() -> None:
    reader = Reader()
    reader.read("scores", 100)
    assert reader.paused == {SCORES}
    async with asyncio.timeout(5):
        await reader.resumed.wait()
    assert not reader.paused


async def test_others_and_what_is_far_behind_do_not_rest() -> None:
    reader = Reader()
    reader.read("observations", 100)
    reader.read("scores", BEHIND)
    assert not reader.paused


async def test_one_that_opens_anew_meanwhile_is_not_read_before_it_is_open() -> None:
    reader = Reader()
    reader.read("scores", 100)
    reader.task.open = False
    TaskConsumer._rested(cast(Any, reader.consumer), SCORES)
    assert reader.paused == {SCORES}
