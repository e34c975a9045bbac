"""What fires when: between events, between slices, by the clock, and when it goes wrong."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from core.errors import UsageError
from engine import clock
from engine.agent import Agent, Stream
from engine.batch import Slice, working_on
from engine.store import PartitionStore, RocksMemory
from engine.table import Table
from engine.timed import TimedShard
from engine.timers import Timers
from engine.windows import Session, Sliding, Tumbling, Windows
from tests.partition import Partition
from tests.unit.event_time.following import (
    END,
    SAID,
    START,
    STEPS,
    Step,
    alarms,
    follow,
    ms,
    run,
    said,
    say,
    until,
    work,
)


def test_a_timer_that_cannot_fire_is_a_dead_letter_and_the_others_fire(folder: Path) -> None:
    async def body(partition: Partition) -> None:
        names = ["a", "poison", "z"]
        await partition.send([Step(name, START, 0, "set", START + 10) for name in names])
        await partition.send([Step("end", END)])
        await partition.send([Step("end", END + 100)])

    partition = run(folder, body)
    assert [key for _, key, *_ in said(partition, "ring")] == ["a", "z"]
    (letter,) = partition.outputs("dead-letters")
    assert letter.key == b"poison"
    assert letter.headers["source"] == f"test-alarms/0/{START + 10}"
    assert letter.headers["error"] == "ValueError"
    assert "poisoned" in letter.headers["message"]
    assert not partition.committed.tables.get("test-alarms")
    assert partition.committed.tables["test-counts"].keys() == {b"a", b"z"}, "what the failed call wrote is undone"


def test_a_timer_that_sets_itself_for_the_same_time_is_refused(folder: Path) -> None:
    async def body(partition: Partition) -> None:
        await partition.send([Step("back", START, 0, "set", START + 10), Step("end", END)])

    (letter,) = run(folder, body).outputs("dead-letters")
    assert "only what is due later may be set" in letter.headers["message"]


def test_an_agent_that_fails_fires_nothing_twice(folder: Path) -> None:
    async def body(partition: Partition) -> None:
        await partition.send(
            [
                Step("a", START, 0, "set", START + 10),
                Step("b", START + 50),
                Step("c", START + 60, 0, "fail"),
                Step("d", START + 70, 0, "set", START + 75),
                Step("end", END),
            ]
        )

    partition = run(folder, body)
    assert said(partition) == [
        ["seen", "a", 0],
        ["seen", "b", 0],
        ["ring", "a", START + 10, 1],
        ["seen", "d", 0],
        ["seen", "end", 0],
        ["ring", "d", START + 75, 1],
    ]
    assert [letter.key for letter in partition.outputs("dead-letters")] == [b"c"]


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


def test_timers_by_the_clock_fire_without_an_event_once_through_a_crash(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = SimpleNamespace(s=END / 1e3)
    monkeypatch.setattr(clock, "time", SimpleNamespace(time=lambda: now.s, monotonic=lambda: 0.0))

    async def body(partition: Partition) -> None:
        await partition.send([Step(name, START, 0, "clock", END + at) for name, at in (("a", 20), ("b", 10))])
        partition.commit()
        partition.task.clock.strike()
        assert not said(partition, "clock")
        now.s += 0.015
        partition.task.clock.strike()
        partition.commit()
        now.s += 0.015
        partition.task.clock.strike()
        await partition.crash()  # before the commit: it fires again
        partition.task.clock.strike()
        partition.task.clock.strike()

    partition = run(folder, body)
    assert said(partition, "clock") == [["clock", "b", END + 10], ["clock", "a", END + 20]]
    assert partition.outputs("said")[-1].headers["source"] == f"test-clock/0/{END + 20}"


def test_a_key_does_not_fire_while_an_event_of_it_is_at_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(s=END / 1e3)
    monkeypatch.setattr(clock, "time", SimpleNamespace(time=lambda: now.s, monotonic=lambda: 0.0))
    gate = asyncio.Event()

    async def handle(step: Step) -> None:
        work(step)
        if step.action == "":
            await gate.wait()
            say("done", step.session)

    async def serve(stream: Stream[Step]) -> None:
        await stream.each(handle, concurrency=10)

    async def body(partition: Partition) -> None:
        await partition.send([Step(name, START, 0, "clock", END + 500) for name in "ab"])
        await until(lambda: not partition.task.unfinished())
        await partition.send([Step("a", START)])
        await until(lambda: any(s.begun for s in partition.task.unfinished()))
        now.s += 1
        partition.task.clock.strike()
        partition.commit()
        assert said(partition, "clock") == [["clock", "b", END + 500]]
        gate.set()
        await until(lambda: not partition.task.unfinished())

    partition = run(folder, body, Agent(STEPS, serve, (SAID,), event_time=True))
    assert [one[:2] for one in said(partition, "clock", "done")] == [["clock", "b"], ["done", "a"], ["clock", "a"]]


def test_an_agent_that_knows_its_times_itself_moves_timers_too(folder: Path) -> None:
    """As scoring does."""

    async def in_columns(stream: Stream[Step]) -> None:
        async for batch in stream:
            for s in batch.slices:
                working_on(s)
                for step in s.events:
                    work(step)
                s.newest = max(step.ts for step in s.events)

    async def body(partition: Partition) -> None:
        await partition.send([Step("a", START, 0, "set", START + 10), Step("b", START + 40)])

    partition = run(folder, body, Agent(STEPS, in_columns, (SAID,)))
    assert said(partition) == [["seen", "a", 0], ["seen", "b", 0], ["ring", "a", START + 10, 1]]


def test_windows_are_refused_where_late_events_are_not_taken_out(folder: Path) -> None:
    async def body(partition: Partition) -> None:
        await partition.send([Step("a", START, 0, "window")])

    (letter,) = run(folder, body, Agent(STEPS, follow, (SAID,))).outputs("dead-letters")
    assert "event_time=True" in letter.headers["message"]


def test_many_that_are_due_at_once_all_fire(folder: Path) -> None:
    names = [f"s{n}" for n in range(3000)]
    random.Random(3).shuffle(names)

    async def body(partition: Partition) -> None:
        await partition.send([Step(name, START, 0, "set", START + 10) for name in names])
        await partition.send([Step("end", END)])
        while partition.committed.tables.get("test-alarms") or not partition.task.idle:
            partition.commit()
            await asyncio.sleep(0)

    rung = [key for _, key, *_ in said(run(folder, body), "ring")]
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
