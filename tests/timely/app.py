"""An application of windows, timers and a pattern, for tests. `faust -A tests.timely.app worker`."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, Final, Literal

import msgspec

from core.topics import Direction, TopicSpec
from engine.agent import Stream, agent
from engine.batch import current_slice
from engine.patterns import Pattern
from engine.timed import Time
from engine.timers import Timers
from engine.windows import Session, Sliding, Tumbling, Window, Windows


class Click(msgspec.Struct):
    """Something that a visitor does."""

    id: str
    session: str
    ts: int
    kind: Literal["question", "answer", "end"] = "question"


class PerSecond(Windows[str, list[str]]):
    """session -> ids of its clicks in each second."""

    name = "per-second"
    windows = Tumbling(timedelta(seconds=1))

    def aggregate(self, value: list[str] | None, event: str) -> list[str]:
        """Sorted: the order of arrival isn't to be seen."""
        return sorted([*(value or []), event])


class Recent(Windows[str, int]):
    """session -> number of its clicks in the last second, every 250 ms."""

    name = "recent"
    windows = Sliding(timedelta(seconds=1), timedelta(milliseconds=250))

    def aggregate(self, value: int | None, event: Any) -> int:
        """One more."""
        return (value or 0) + 1


class Visits(Windows[str, int]):
    """session -> number of clicks that follow each other within less than 300 ms."""

    name = "visits"
    windows = Session(timedelta(milliseconds=300))

    def aggregate(self, value: int | None, event: Any) -> int:
        """One more."""
        return (value or 0) + 1

    def merge(self, earlier: int, later: int) -> int:
        """Both."""
        return earlier + later


class Reminders(Timers):
    """session/click -> when it is told of, in event time."""

    name = "reminders"
    separator = "/"


class Alarms(Timers):
    """session/click -> when it is told of, by the clock."""

    name = "alarms"
    separator = "/"
    time = Time.PROCESSING


class Answers(Pattern[str, str, str]):
    """session -> questions that wait for an answer."""

    name = "questions"
    within = timedelta(milliseconds=400)


CLICKS: Final = TopicSpec("clicks", "session", Click, Direction.IN)
HEARD: Final = TopicSpec("heard", "session", list, Direction.OUT)
per_second, recent, visits = PerSecond(), Recent(), Visits()
reminders, alarms, answers = Reminders(), Alarms(), Answers()


def tell(session: str, *words: Any) -> None:
    """One output."""
    current_slice().send(HEARD, session, [*words])


@agent(CLICKS, outputs=[HEARD], event_time=True)
async def follow(stream: Stream[Click]) -> None:
    """Puts every click into each of them."""
    async for batch in stream:
        for click in batch:
            if click.kind == "end":
                continue
            for windows in (per_second, recent, visits):
                windows.add(click.session, click.ts, click.id)
            reminders.set(f"{click.session}/{click.id}", click.ts + 700)
            alarms.set(f"{click.session}/{click.id}", int(time.time() * 1e3) + 300)
            if click.kind == "question":
                answers.first(click.session, click.ts, click.id)
            else:
                answers.then(click.session, click.ts, click.id)


for windows in (per_second, recent, visits):

    @windows.on_close
    def close(session: str, window: Window, value: Any, name: str = windows.name) -> None:
        """Tells what the window had."""
        tell(session, name, session, *window, value)


@reminders.on_fire
def remind(key: str, at: int) -> None:
    """Tells."""
    tell(key.partition("/")[0], "reminder", key, at)


@alarms.on_fire
def ring(key: str, at: int) -> None:
    """Tells: the time is another one after a crash, the alarm rings once."""
    tell(key.partition("/")[0], "alarm", key)


@answers.on_match
def answered(session: str, question: str, answer: str) -> None:
    """Tells."""
    tell(session, "answered", question, answer)


@answers.on_timeout
def unanswered(session: str, question: str) -> None:
    """Tells."""
    tell(session, "unanswered", question)


from app import app

__all__ = ["app"]
