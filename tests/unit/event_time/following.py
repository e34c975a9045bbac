"""An application with every kind of timed value, and an agent that does with them what an event says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar, Final

import msgspec

from core.topics import Direction, TopicSpec
from engine.agent import Agent, Stream
from engine.batch import Slice, current_slice
from engine.patterns import Pattern
from engine.table import Table
from engine.testing import InMemory, in_memory
from engine.testing.log import changelog_of
from engine.timed import Time
from engine.timers import Timers
from engine.windows import Session, Sliding, Tumbling, Window, Windows

START: Final = 1_700_000_000_000
"""A multiple of all window sizes here."""
LATENESS: Final = 20
END: Final = START + 10_000


class Step(msgspec.Struct, frozen=True):
    """Something that happens in a session."""

    session: str
    ts: int
    value: int = 0
    action: str = ""
    at: int = 0


STEPS: Final = TopicSpec("steps", "session", Step, Direction.IN)
SAID: Final = TopicSpec("said", "session", list, Direction.OUT)


def ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


class Minutes(Windows[str, list[int]]):
    """session -> values, sorted."""

    name = "test-tumbling"
    windows: ClassVar[Tumbling | Sliding | Session] = Tumbling(ms(50))

    def aggregate(self, value: list[int] | None, event: int) -> list[int]:
        return sorted([*(value or []), event])


class Overlapping(Minutes):
    """The same, in windows that overlap."""

    name = "test-sliding"
    windows = Sliding(ms(50), ms(20))


class Visits(Minutes):
    """The same, by visit."""

    name = "test-session"
    windows = Session(ms(30))

    def merge(self, earlier: list[int], later: list[int]) -> list[int]:
        return sorted([*earlier, *later])


class Alarms(Timers):
    """session -> when it rings."""

    name = "test-alarms"


class Clock(Timers):
    """session -> when it rings, by the worker's clock."""

    name = "test-clock"
    time = Time.PROCESSING


class Corrections(Pattern[str, int, str]):
    """session -> predictions that wait for their correction."""

    name = "test-corrections"
    within = ms(40)


class Counts(Table[str, int]):
    """session -> how many of its alarms rang."""

    name = "test-counts"


minutes, overlapping, visits = Minutes(), Overlapping(), Visits()
alarms, by_clock, corrections, counts = Alarms(), Clock(), Corrections(), Counts()
TABLES: Final[Sequence[Table[Any, Any]]] = (minutes, overlapping, visits, alarms, by_clock, corrections, counts)


def say(*words: Any) -> None:
    current_slice().send(SAID, words[1], list(words))


for windows in (minutes, overlapping, visits):

    @windows.on_close
    def closed(key: str, window: Window, value: list[int], name: str = windows.name) -> None:
        say(name, key, *window, value)


@corrections.on_match
def matched(key: str, first: int, second: str) -> None:
    say("match", key, first, second)


@corrections.on_timeout
def missed(key: str, first: int) -> None:
    say("timeout", key, first)


@alarms.on_fire
def ring(key: str, at: int) -> None:
    counts[key] = counts.get(key, 0) + 1  # type: ignore[operator]
    if key.startswith("poison"):
        raise ValueError("this alarm is poisoned")
    say("ring", key, at, counts[key])
    if key.startswith("again") and at < START + 100:
        alarms.set(key, at + 7)
    if key.startswith("back"):
        alarms.set(key, at)


@by_clock.on_fire
def ring_by_clock(key: str, at: int) -> None:
    say("clock", key, at)


def work(step: Step) -> None:
    match step.action:
        case "window":
            for windows in (minutes, overlapping, visits):
                windows.add(step.session, step.ts, step.value)
        case "set":
            alarms.set(step.session, step.at)
        case "cancel":
            alarms.cancel(step.session)
        case "clock":
            by_clock.set(step.session, step.at)
        case "first":
            corrections.first(step.session, step.ts, step.value)
        case "then":
            corrections.then(step.session, step.ts, str(step.value))
        case "fail":
            raise ValueError("no")
    say("seen", step.session, step.value)


async def follow(stream: Stream[Step]) -> None:
    """Step by step."""
    async for batch in stream:
        for step in batch:
            work(step)


FOLLOW: Final = Agent(STEPS, follow, (SAID,), event_time=True)


def run(body: Any, *of: Agent[Any]) -> InMemory:
    """Runs body(trial), by default of follow(), commits, and returns the trial with what is committed."""

    async def inside() -> InMemory:
        async with in_memory(of or [FOLLOW], TABLES, allowed_lateness=ms(LATENESS)) as trial:
            await body(trial)
            await trial.commit()
            return trial

    return asyncio.run(inside())


def said(trial: InMemory, *kinds: str) -> list[Any]:
    return [output.value for output in trial.outputs(SAID) if not kinds or output.value[0] in kinds]


def left(trial: InMemory, *tables: Table[Any, Any]) -> set[bytes]:
    """Keys that have a committed value."""
    changelogs = [changelog_of(trial.settings.app_id, "", table.name, 0) for table in tables]
    return {key for changelog in changelogs for key in trial.log.newest(changelog)}


def unfinished(trial: InMemory) -> list[Slice[Any]]:
    """What an agent has, or will get."""
    return trial.engine.tasks[0].unfinished()


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)
