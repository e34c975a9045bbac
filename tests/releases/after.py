"""The new release. `faust -A tests.releases.after worker`."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.agent import Stream, agent
from engine.batch import current_slice
from engine.table import Table
from tests.releases import COUNTED, ORDERS, Counted, Order


class Count(msgspec.Struct):
    """What is known of a session's orders."""

    number: int = 0
    last: str = ""


def with_last(number: Any) -> Any:
    """Version 1 was a number."""
    return {"number": number, "last": ""}


class Counts(Table[str, Count]):
    """session -> its orders."""

    name = "counts"
    migrations = (with_last,)


counts = Counts()


@agent(ORDERS, outputs=[COUNTED])
async def count(stream: Stream[Order]) -> None:
    """Counts, and notes the last one."""
    async for batch in stream:
        for order in batch:
            known = counts.get(order.session) or Count()
            counts[order.session] = Count(known.number + 1, order.id)
            current_slice().send(COUNTED, order.session, Counted(order.session, known.number + 1, "after"))


from app import app

__all__ = ["app"]
