"""An application with an agent whose outputs can't wait, for tests. `faust -A tests.urgent.app worker`."""

from __future__ import annotations

from typing import Final

import msgspec

from core.topics import Direction, TopicSpec
from engine.agent import Stream, agent
from engine.batch import current_slice
from engine.table import Table


class Call(msgspec.Struct):
    """Something to be told of."""

    id: str
    session: str


class Told(msgspec.Struct):
    """What is told, with how many calls of the session there were."""

    id: str
    session: str
    number: int


class Calls(Table[str, int]):
    """session -> number of its calls. Written by tell()."""

    name = "calls"


CALLS: Final = TopicSpec("calls", "session", Call, Direction.IN)
TOLD: Final = TopicSpec("told", "session", Told, Direction.OUT)
calls = Calls()


@agent(CALLS, outputs=[TOLD], early=True)
async def tell(stream: Stream[Call]) -> None:
    """Counts, and tells before the count is committed."""
    async for batch in stream:
        for call in batch:
            number = calls[call.session] = (calls.get(call.session) or 0) + 1
            current_slice().send(TOLD, call.session, Told(call.id, call.session, number))


from app import app

__all__ = ["app"]
