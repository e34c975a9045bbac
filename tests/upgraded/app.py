"""The next release of the application, for tests: it reads one topic more. `faust -A tests.upgraded.app worker`."""

from __future__ import annotations

from typing import Final

from core.events import Observation
from core.topics import DEAD_LETTERS, Direction, TopicSpec
from engine.agent import Stream, agent
from engine.tracing import output_headers

NOTES: Final = TopicSpec("notes", "session", Observation, Direction.IN)


@agent(NOTES)
async def read(stream: Stream[Observation]) -> None:
    """Answers every note with its own bytes, on a topic that both releases know."""
    async for batch in stream:
        for s in batch.slices:
            values = [record.value for record in s.records]
            s.emit(DEAD_LETTERS, s.keys, values, output_headers(s.topic, s.partition, s.records))


from app import app

__all__ = ["app"]
