"""The old release. `faust -A tests.releases.before worker`."""

from __future__ import annotations

from engine.agent import Stream, agent
from engine.batch import current_slice
from engine.table import Table
from tests.releases import COUNTED, ORDERS, Counted, Order


class Counts(Table[str, int]):
    """session -> number of its orders."""

    name = "counts"


counts = Counts()


@agent(ORDERS, outputs=[COUNTED])
async def count(stream: Stream[Order]) -> None:
    """Counts."""
    async for batch in stream:
        for order in batch:
            counts[order.session] = counts.get(order.session, 0) + 1  # type: ignore[operator]
            current_slice().send(COUNTED, order.session, Counted(order.session, counts[order.session], "before"))


from app import app

__all__ = ["app"]
