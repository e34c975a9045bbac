"""What fires when: between events, between slices, by the clock, and when it goes wrong."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from core.errors import UsageError
from engine.agent import Agent, Stream
from engine.batch import Slice, working_on
from engine.store import PartitionStore, RocksMemory
from engine.table import Table
from engine.testing import InMemory
from engine.timed import TimedShard
from engine.timers import Timers
from engine.windows import Session, Sliding, Tumbling, Windows
from tests.unit.event_time.following import (
    END,
    SAID,
    START,
    STEPS,
    Step,
    alarms,
    counts,
    follow,
    left,
    ms,
    run,
    said,
    say,
    unfinished,
    until,
    work,
)


def test_a_timer_that_cannot_fire_is_a_dead_letter_and_the_others_fire() -> None:
    async def body(trial: InMemory) -> None:
        names = ["a", "poison", "z"]
        await trial.send(STEPS, [Step(name, START, 0, "set", START + 10) for name in names])
        await trial.send(STEPS, [Step("end", END)])
        await trial.send(STEPS, [Step("end", END + 100)])

    trial = run(body)
    assert [key for _, key, *_ in said(trial, "ring")] == ["a", "z"]
    (letter,) = trial.dead_letters()
    assert letter.key == "poison"
    assert letter.headers["source"] == f"test-alarms/0/{START + 10}"
    assert letter.headers["error"] == "ValueError"
    assert "poisoned" in letter.headers["message"]
    assert not left(trial, alarms)
    assert left(trial, counts) == {b"a", b"z"}, "what the failed call wrote is undone"


def test_a_timer_that_sets_itself_for_the_same_time_is_refused() -> None:
    async def body(trial: InMemory) -> None:
        await trial.send(STEPS, [Step("back", START, 0, "set", START + 10), Step("end", END)])

    (letter,) = run(body).dead_letters()
    assert "only what is due later may be set" in letter.headers["message"]


def test_an_agent_that_fails_fires_nothing_twice() -> None:
    async def body(trial: InMemory) -> None:
        await trial.send(
            STEPS,
            [
                Step("a", START, 0, "set", START + 10),
                Step("b", START + 50),
                Step("c", START + 60, 0, "fail"),
                Step("d", START + 70, 0, "set", START + 75),
                Step("end", END),
            ],
        )

    trial = run(body)
    assert said(trial) == [
        ["seen", "a", 0],
        ["seen", "b", 0],
        ["ring", "a", START + 10, 1],
        ["seen", "d", 0],
        ["seen", "end", 0],
        ["ring", "d", START + 75, 1],
    ]
    assert [letter.key for letter in trial.dead_letters()] == ["c"]


@pytest.mark.parametrize("wrong", [lambda: Sliding(ms(10), ms(20)), lambda: Tumbling(ms(0)), lambda: Session(ms(-1))])
def test_windows_that_cannot_be_are_refused(wrong: Any) -> None:
    with pytest.raises(UsageError):
        wrong()


def test_session_windows_need_a_merge() -> None:
    class Broken(Windows[str, int]):
        name = "test-broken"
        windows = Session(ms(10))

    with pytest.raises(UsageError, match="merge"):
        Broken()


def test_a_second_call_and_a_coroutine_are_refused() -> None:
    with pytest.raises(UsageError, match="already calls"):
        alarms.on_fire(lambda key, at: None)

    async def later(key: str, at: int) -> None: ...

    class Others(Timers):
        name = "test-others"

    try:
        with pytest.raises(UsageError, match="coroutine"):
            Others().on_fire(later)  # type: ignore[type-var]
    finally:
        del Table.declared["test-others"]


def test_timers_by_the_clock_fire_without_an_event_once_through_a_crash() -> None:
    now = int(time.time() * 1e3)

    async def body(trial: InMemory) -> None:
        at = {"a": now + 1_200_000, "b": now + 600_000}
        await trial.send(STEPS, [Step(name, START, 0, "clock", ms) for name, ms in at.items()])
        await trial.commit()
        await trial.elapse(timedelta(0))
        assert not said(trial, "clock")
        await trial.elapse(timedelta(minutes=15))
        await trial.commit()
        await trial.elapse(timedelta(minutes=15))
        await trial.crash()  # before the commit: it fires again
        await trial.elapse(timedelta(0))
        await trial.elapse(timedelta(0))

    trial = run(body)
    assert said(trial, "clock") == [["clock", "b", now + 600_000], ["clock", "a", now + 1_200_000]]
    assert trial.outputs(SAID)[-1].headers["source"] == f"test-clock/0/{now + 1_200_000}"


def test_a_key_does_not_fire_while_an_event_of_it_is_at_work() -> None:
    at = int(time.time() * 1e3) + 600_000
    gate = asyncio.Event()

    async def handle(step: Step) -> None:
        work(step)
        if step.action == "":
            await gate.wait()
            say("done", step.session)

    async def serve(stream: Stream[Step]) -> None:
        await stream.each(handle, concurrency=10)

    async def body(trial: InMemory) -> None:
        await trial.send(STEPS, [Step(name, START, 0, "clock", at) for name in "ab"])
        await until(lambda: not unfinished(trial))
        await trial.send(STEPS, [Step("a", START)])
        await until(lambda: any(s.begun for s in unfinished(trial)))
        await trial.elapse(timedelta(minutes=15))
        await trial.commit()
        assert said(trial, "clock") == [["clock", "b", at]]
        gate.set()
        await until(lambda: not unfinished(trial))

    trial = run(body, Agent(STEPS, serve, (SAID,), event_time=True))
    assert [one[:2] for one in said(trial, "clock", "done")] == [["clock", "b"], ["done", "a"], ["clock", "a"]]


def test_an_agent_that_knows_its_times_itself_moves_timers_too() -> None:
    """As scoring does."""

    async def in_columns(stream: Stream[Step]) -> None:
        async for batch in stream:
            for s in batch.slices:
                working_on(s)
                for step in s.events:
                    work(step)
                s.newest = max(step.ts for step in s.events)

    async def body(trial: InMemory) -> None:
        await trial.send(STEPS, [Step("a", START, 0, "set", START + 10), Step("b", START + 40)])

    trial = run(body, Agent(STEPS, in_columns, (SAID,)))
    assert said(trial) == [["seen", "a", 0], ["seen", "b", 0], ["ring", "a", START + 10, 1]]


def test_windows_are_refused_where_late_events_are_not_taken_out() -> None:
    async def body(trial: InMemory) -> None:
        await trial.send(STEPS, [Step("a", START, 0, "window")])

    (letter,) = run(body, Agent(STEPS, follow, (SAID,))).dead_letters()
    assert "event_time=True" in letter.headers["message"]


def test_many_that_are_due_at_once_all_fire() -> None:
    names = [f"s{n}" for n in range(3000)]
    random.Random(3).shuffle(names)

    async def body(trial: InMemory) -> None:
        await trial.send(STEPS, [Step(name, START, 0, "set", START + 10) for name in names])
        await trial.send(STEPS, [Step("end", END)])
        await trial.settle()

    rung = [key for _, key, *_ in said(run(body), "ring")]
    assert rung == sorted(names)


def test_a_timer_whose_cancelling_is_given_up_is_due_again(folder: Path) -> None:
    store = PartitionStore(folder / "p", [alarms.name], RocksMemory())
    shard = cast(TimedShard, alarms.shard(store))
    set_it, cancel_it = (cast(Slice[Any], SimpleNamespace(changed=[])) for _ in range(2))
    shard.put(set_it, b"a", alarms.encode(10))
    for _, change in set_it.changed:
        shard.settle(change)
    shard.put(cancel_it, b"a", None)
    assert shard.first(20) is None
    shard.rollback([cancel_it], [])
    assert shard.first(20) == (10, b"a")
    store.close()
