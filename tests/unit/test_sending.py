"""Without transactions outputs leave at once; a commit waits until all that it speaks of has left."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec
import pytest

from core.errors import TaskError
from core.topics import PREDICTIONS, Direction, TopicSpec
from engine.agent import Agent, Stream
from tests.partition import Partition


class Order(msgspec.Struct):
    session: str


ORDERS: Final = TopicSpec("orders", "session", Order, Direction.IN)


async def announce(stream: Stream[Order]) -> None:
    async for batch in stream:
        for s in batch.slices:
            s.emit(PREDICTIONS, s.keys, [b"{}"] * s.size, [[]] * s.size)


class Sends:
    """A producer whose sends end when they are let."""

    def __init__(self) -> None:
        self.under_way: list[asyncio.Future[None]] = []

    async def send(self, builders: Any) -> None:
        self.under_way.append(asyncio.get_running_loop().create_future())
        await self.under_way[-1]


async def test_a_send_that_ends_after_its_partition_has_opened_anew_confirms_nothing_of_the_new_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends = Sends()
    async with Partition([Agent(ORDERS, announce)], [], tmp_path, monkeypatch) as partition:
        engine = cast(Any, partition.task.engine)
        started, engine.exactly_once = engine.committer.producer, False

        async def producer() -> Any:
            return SimpleNamespace(new_builder=(await started()).new_builder, send=sends.send)

        engine.committer.producer = engine.committer.early_producer = producer
        partition.task.fail(TaskError("from now on without transactions"))
        await until(lambda: partition.task.open)
        await partition.send([Order("ann")] * 5)
        await until(lambda: len(sends.under_way) == 1)
        partition.task.fail(TaskError("the broker did not take a write"))
        await until(lambda: partition.task.open)
        await partition.send([Order("ben")])
        await until(lambda: len(sends.under_way) == 2)
        sends.under_way[0].set_result(None)
        waiting = asyncio.create_task(cast(Any, partition.task)._early.until_sent(1))
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done, "the commit would have spoken of an output that has not left"
        sends.under_way[1].set_result(None)
        await asyncio.wait_for(waiting, 10)


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)
