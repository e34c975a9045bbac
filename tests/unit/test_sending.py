"""Without transactions outputs leave at once; a commit waits until all that it speaks of has left."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec

from core.errors import TaskError
from core.topics import PREDICTIONS, Direction, TopicSpec
from engine.agent import Agent, Stream
from engine.testing import in_memory


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


async def test_a_send_that_ends_after_its_partition_has_opened_anew_confirms_nothing_of_the_new_life() -> None:
    sends = Sends()
    async with in_memory([Agent(ORDERS, announce)], [], guarantee="at_least_once") as trial:
        committer, task = cast(Any, trial.engine.committer), trial.engine.tasks[0]
        started = committer.producer

        async def producer() -> Any:
            return SimpleNamespace(new_builder=(await started()).new_builder, send=sends.send)

        committer.producer = committer.early_producer = producer
        task.fail(TaskError("from now on with sends that take their time"))
        await until(lambda: task.open)
        await trial.send(ORDERS, [Order("ann")] * 5)
        await until(lambda: len(sends.under_way) == 1)
        task.fail(TaskError("the broker did not take a write"))
        await until(lambda: task.open)
        await trial.send(ORDERS, [Order("ben")])
        await until(lambda: len(sends.under_way) == 2)
        sends.under_way[0].set_result(None)
        waiting = asyncio.create_task(cast(Any, task)._outboxes._early.until_sent(1))
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done, "the commit would have spoken of an output that has not left"
        sends.under_way[1].set_result(None)
        await asyncio.wait_for(waiting, 10)


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)
