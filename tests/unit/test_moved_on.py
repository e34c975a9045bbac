"""Work that its partition has moved on from, as after a rebalance, leaves no trace: it is done again."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

import msgspec

from core.errors import DataFolderError, TaskError
from core.topics import Direction, TopicSpec
from engine.agent import Agent, Stream
from engine.table import Table
from engine.testing import in_memory


class Order(msgspec.Struct):
    session: str
    id: str


class Handled(Table[str, list[str]]):
    """session -> ids of its orders."""

    name = "test-handled"


ORDERS: Final = TopicSpec("orders", "session", Order, Direction.IN)
handled = Handled()


async def test_an_order_that_was_at_work_when_its_partition_moved_on_is_handled_once() -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    async def handle(order: Order) -> None:
        begun.set()
        await gate.wait()
        handled[order.session] = [*handled.get(order.session, []), order.id]  # type: ignore[misc]

    async def serve(stream: Stream[Order]) -> None:
        await stream.each(handle, concurrency=4)

    async with in_memory([Agent(ORDERS, serve)], [handled]) as trial:
        await trial.send(ORDERS, [Order("ann", "o1")])
        await begun.wait()
        trial.engine.tasks[0].read_again()
        gate.set()
        await trial.settle()
        assert trial.values(handled) == {"ann": ["o1"]}


async def test_an_order_whose_partition_fails_under_it_is_done_again_and_no_dead_letter() -> None:
    failed: list[str] = []

    async def handle(order: Order) -> None:
        if not failed:
            failed.append(order.id)
            raise TaskError("a store that can't be read just now")
        handled[order.session] = [*handled.get(order.session, []), order.id]  # type: ignore[misc]

    async def serve(stream: Stream[Order]) -> None:
        await stream.each(handle, concurrency=4)

    async with in_memory([Agent(ORDERS, serve)], [handled]) as trial:
        await trial.send(ORDERS, [Order("ann", "o1")])
        await trial.settle()
        assert trial.values(handled) == {"ann": ["o1"]}
        assert trial.dead_letters() == []
        assert failed == ["o1"]


async def test_a_disk_that_fails_under_an_order_ends_the_worker_and_makes_no_dead_letter() -> None:
    wrong = DataFolderError("the disk is gone")
    ended: asyncio.Queue[BaseException] = asyncio.Queue()

    async def handle(order: Order) -> None:
        raise wrong

    async def serve(stream: Stream[Order]) -> None:
        await stream.each(handle, concurrency=4)

    async with in_memory([Agent(ORDERS, serve)], [handled]) as trial:
        cast(Any, trial.engine).fatal = ended.put_nowait
        await trial.send(ORDERS, [Order("ann", "o1")])
        assert await asyncio.wait_for(ended.get(), 10) is wrong
        await trial.commit()
        assert trial.dead_letters() == []
        assert trial.engine.tasks[0].unfinished(), "the order waits for the next start"
