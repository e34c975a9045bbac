"""An application whose agents fail on some records, for tests. `faust -A tests.clumsy.app worker`."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from core.topics import Direction, TopicSpec
from engine.agent import Stream, agent
from engine.batch import current_slice
from engine.table import Table


class Order(msgspec.Struct):
    """Something to add up."""

    id: str
    session: str
    amount: int
    poison: bool = False
    work_s: float = 0.0


class Totals(Table[str, int]):
    """session -> sum of its orders. Written by add()."""

    name = "totals"


class Receipts(Table[str, list[str]]):
    """session -> ids of its slow orders, in the order of their handling. Written by handle()."""

    name = "receipts"


ORDERS: Final = TopicSpec("orders", "session", Order, Direction.IN)
SLOW_ORDERS: Final = TopicSpec("slow-orders", "session", Order, Direction.IN)
RECEIPTS: Final = TopicSpec("receipts", "session", list, Direction.OUT)
totals, receipts = Totals(), Receipts()


@agent(ORDERS)
async def add(stream: Stream[Order]) -> None:
    """Adds orders up, and trips over poisoned ones after it has written."""
    async for batch in stream:
        for order in batch:
            totals[order.session] = totals.get(order.session, 0) + order.amount  # type: ignore[operator]
            if order.poison:
                raise ValueError("this order is poisoned")


async def handle(order: Order) -> None:
    """Takes its time, in which orders of other sessions are handled."""
    ids = [*(receipts.get(order.session) or []), order.id]
    receipts[order.session] = ids
    await asyncio.sleep(order.work_s)
    if order.poison:
        raise ValueError("this order is poisoned")
    current_slice().send(RECEIPTS, order.session, ids)


@agent(SLOW_ORDERS, outputs=[RECEIPTS])
async def serve(stream: Stream[Order]) -> None:
    """Handles orders concurrently over sessions, in order within one."""
    await stream.each(handle, concurrency=16)


from app import app

__all__ = ["app"]
