"""What of Faust's API an application may use, used. `faust -A tests.surface.app worker`."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any, Final

import msgspec
from mode import Service

from core.topics import Direction, TopicSpec
from engine.agent import Stream, agent
from engine.batch import Batch


class Greeting(msgspec.Struct):
    """Something to say to a session."""

    session: str
    text: str


GREETINGS: Final = TopicSpec("greetings", "session", Greeting, Direction.IN)
SHOUTS: Final = TopicSpec("shouts", "session", Greeting, Direction.IN)

happened: Counter[str] = Counter()
"""What ran, and how often."""


@agent(GREETINGS)
async def greet(stream: Stream[Greeting]) -> None:
    """Event by event, inside batches."""
    async for batch in stream:
        assert isinstance(batch, Batch)
        for event in batch:
            happened[f"agent {event.text}"] += 1


@agent(SHOUTS)
async def shout(stream: Stream[Greeting]) -> None:
    """Event by event, concurrently over sessions."""

    async def handle(event: Greeting) -> None:
        happened[f"each {event.text}"] += 1

    await stream.each(handle, concurrency=4)


from app import app  # after the agents: the application is made of those that it knows


@app.task
async def once() -> None:
    """Runs when the worker has started."""
    happened["task"] += 1


@app.timer(interval=timedelta(milliseconds=100))
async def often() -> None:
    """Runs again and again."""
    happened["timer"] += 1


@app.crontab("* * * * * *")
async def every_second() -> None:
    """The sixth field is seconds."""
    happened["crontab"] += 1


@app.service
class Beside(Service):
    """Lives and ends with the worker."""

    async def on_start(self) -> None:
        """Starts with the worker."""
        happened["service"] += 1


@app.page("/happened")
async def page(view: Any, request: Any) -> Any:
    """What ran so far."""
    return view.json(dict(happened))


@app.page("/send/{text}")
async def send(view: Any, request: Any, text: str) -> Any:
    """Two ways of Faust to write a record."""
    value = {"session": "s", "text": text}
    prefix = app.settings.topic_prefix
    await (await app.topic(f"{prefix}{GREETINGS.name}", value_serializer="json").send(key=b"s", value=value))
    await (await app.send(f"{prefix}{SHOUTS.name}", key=b"s", value=value, value_serializer="json"))
    return view.json(value)


@app.command()
async def hello(self: Any) -> None:
    """A command of the application's own."""
    self.say(f"hello from {self.app.conf.id}")


__all__ = ["app"]
