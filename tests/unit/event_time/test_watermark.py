"""The watermark, and what is late."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
import pytest

from core.errors import SettingsError, UsageError
from core.settings import Settings
from core.topics import Direction, TopicSpec
from engine.agent import Agent, Stream, agent
from engine.testing import InMemory
from tests.unit.event_time.following import (
    FOLLOW,
    LATENESS,
    SAID,
    START,
    STEPS,
    TABLES,
    Step,
    follow,
    left,
    minutes,
    ms,
    run,
    said,
    work,
)


def test_a_late_event_goes_to_late_as_it_came_with_how_late_it_is() -> None:
    late = Step("b", START + 75)

    async def body(trial: InMemory) -> None:
        await trial.send(STEPS, [Step("a", START + 100), Step("c", START + 80), late])

    trial = run(body)
    assert [key for _, key, _ in said(trial)] == ["a", "c"]
    (copy,) = trial.late()
    assert (copy.key, copy.value) == ("b", msgspec.json.encode(late))
    assert copy.headers["source"] == "steps/0/2"
    assert copy.headers["late-ms"] == "5"
    assert copy.headers["event-time"] == "2023-11-14T22:13:20.075Z"
    assert copy.headers["watermark"] == "2023-11-14T22:13:20.080Z"
    assert {"traceparent", "time"} <= copy.headers.keys()


def test_an_event_ahead_of_the_clock_makes_nobody_late_and_waits_for_its_time() -> None:
    ahead = Step("b", 4_000_000_000_000, 1, "window")

    async def body(trial: InMemory) -> None:
        await trial.send(STEPS, [Step("a", START + 100), ahead, Step("c", START + 90)])

    trial = run(body)
    assert [key for _, key, _ in said(trial)] == ["a", "b", "c"]
    assert trial.watermark() == START + 80
    assert left(trial, minutes) == {b"b"}


def test_the_watermark_never_goes_back_not_even_with_more_lateness_after_a_restart() -> None:
    async def body(trial: InMemory) -> None:
        await trial.send(STEPS, [Step("a", START + 100)])
        await trial.commit()
        await trial.release([FOLLOW], TABLES, allowed_lateness=ms(1000))
        await trial.send(STEPS, [Step("b", START + 70), Step("c", START + 85)])

    trial = run(body)
    assert [key for _, key, _ in said(trial)] == ["a", "c"]
    assert trial.watermark() == START + 80


@pytest.mark.parametrize("wrong", ["-1", "soon"])
def test_a_lateness_that_cannot_be_is_refused_by_name(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMUNCULUS_ALLOWED_LATENESS", wrong)
    with pytest.raises(SettingsError, match="HOMUNCULUS_ALLOWED_LATENESS"):
        Settings.read()


def test_event_time_needs_a_time() -> None:
    class Plain(msgspec.Struct):
        session: str

    with pytest.raises(UsageError, match="no field ts"):
        agent(TopicSpec("plain", "session", Plain, Direction.IN), event_time=True)


OTHERS: Final = TopicSpec("others", "session", Step, Direction.IN)


def test_a_topic_with_a_backlog_holds_the_watermark_back_and_an_idle_one_does_not() -> None:
    others = Agent(OTHERS, follow, (SAID,), event_time=True)
    backlog = [Step("b", START + at, at, "window") for at in (10, 30, 60, 90)]

    async def body(trial: InMemory) -> None:
        trial.publish(OTHERS, backlog)
        await trial.send(STEPS, [Step("a", START + 1000)])
        await trial.read(OTHERS, 1)
        await trial.commit()
        await trial.crash()  # and it isn't forgotten who was behind
        await trial.send(STEPS, [Step("a", START + 1001)])
        while await trial.read(OTHERS, 1):
            pass
        await trial.commit()
        assert trial.watermark() == START + 1001 - LATENESS
        await trial.send(STEPS, [Step("a", START + 2000)])

    trial = run(body, FOLLOW, others)
    assert trial.late() == []
    assert said(trial, "test-tumbling") == [
        ["test-tumbling", "b", START, START + 50, [10, 30]],
        ["test-tumbling", "b", START + 50, START + 100, [60, 90]],
    ]
    assert trial.watermark() == START + 2000 - LATENESS


def test_the_watermark_does_not_pass_an_event_that_another_agent_still_has() -> None:
    gate, has = asyncio.Event(), asyncio.Event()

    async def slowly(stream: Stream[Step]) -> None:
        async for batch in stream:
            for step in batch:
                has.set()
                await gate.wait()
                work(step)

    async def body(trial: InMemory) -> None:
        await trial.send(STEPS, [Step("b", START + 10, 1, "window"), Step("b", START + 60)])
        trial.publish(OTHERS, [Step("b", START + 45, 2, "window")])
        reading = asyncio.create_task(trial.read(OTHERS, 10))
        await has.wait()
        await trial.send(STEPS, [Step("a", START + 1000), Step("a", START + 1001)])
        await trial.commit()
        assert not said(trial, "test-tumbling")
        gate.set()
        await reading

    trial = run(body, FOLLOW, Agent(OTHERS, slowly, (SAID,), event_time=True))
    assert said(trial, "test-tumbling") == [["test-tumbling", "b", START, START + 50, [1, 2]]]
    assert trial.watermark() == START + 1001 - LATENESS
