"""Event time in one partition: timers, windows and patterns, whatever the order, the batches and the crashes."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Final, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import SettingsError, UsageError
from core.settings import Settings
from core.topics import Direction, TopicSpec
from engine import clock
from engine.agent import Agent, Stream, agent
from engine.batch import Slice, current_slice, working_on
from engine.patterns import Pattern
from engine.store import PartitionStore, RocksMemory
from engine.table import Table
from engine.timed import Time, TimedShard
from engine.timers import Timers
from engine.windows import Session, Sliding, Tumbling, Window, Windows
from tests.partition import Partition

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


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("partition")


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def run(folder: Path, body: Any, *of: Agent[Any]) -> Partition:
    """Runs body(partition), by default of follow(), commits, and returns the partition with what is committed."""

    async def inside() -> Partition:
        with pytest.MonkeyPatch.context() as patch:
            async with Partition(of or [FOLLOW], TABLES, folder, patch, lateness=ms(LATENESS)) as partition:
                await body(partition)
                partition.commit()
                return partition

    return asyncio.run(inside())


def said(partition: Partition, *kinds: str) -> list[Any]:
    return [output.json for output in partition.outputs("said") if not kinds or output.json[0] in kinds]


# -- any order, any batches, any crashes -----------------------------------------------------------------------------

Ordered = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.integers(0, LATENESS)), max_size=25)
"""Session, time since the event before, and what it is held up on its way: at most the allowed lateness."""
Plan = st.lists(st.tuples(st.integers(1, 12), st.sampled_from(["go on", "commit", "crash"])), max_size=6)
"""Sizes of batches, and what follows each."""


def steps(ordered: list[tuple[str, int, int]], actions: str) -> tuple[list[Step], list[Step]]:
    """In the order of their time, and in that of their arrival; the last one closes everything."""
    ts, made = START, []
    for number, (session, gap, delay) in enumerate(ordered):
        ts += gap
        action = actions.split()[number % len(actions.split())]
        made.append((ts + delay, Step(session, ts, number, action)))
    arrived = sorted(made, key=lambda one: one[0])
    end = Step("end", END)
    return [step for _, step in made] + [end], [step for _, step in arrived] + [end]


def drive(folder: Path, arrived: list[Step], plan: list[tuple[int, str]]) -> Partition:
    """Works on what arrived, in batches as planned, with commits and crashes between them."""

    async def body(partition: Partition) -> None:
        partition.publish(arrived)
        for size, then in plan:
            await partition.read(size)
            if then == "commit":
                partition.commit()
            elif then == "crash":
                await partition.crash()
        await partition.send([], batch=7)

    return run(folder, body)


def recount(ordered: list[Step]) -> list[Any]:
    """The windows of steps, by hand."""
    found: list[Any] = []
    for name, size, slide in (("test-tumbling", 50, 50), ("test-sliding", 50, 20)):
        values: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for step in ordered:
            start = START - 200 - (START - 200) % slide
            while start <= step.ts:
                if step.ts < start + size:
                    values[step.session, start].append(step.value)
                start += slide
        found += [[name, key, start, start + size, sorted(value)] for (key, start), value in values.items()]
    for session in "abc":
        runs: list[list[Step]] = []
        for step in (step for step in ordered if step.session == session):
            if runs and step.ts < runs[-1][-1].ts + 30:
                runs[-1].append(step)
            else:
                runs.append([step])
        found += [
            ["test-session", session, run[0].ts, run[-1].ts + 30, sorted(step.value for step in run)] for run in runs
        ]
    return sorted(found)


def windows_of_shuffled_events_are_those_of_ordered_ones(
    folder: Path, ordered: list[tuple[str, int, int]], plan: list[tuple[int, str]]
) -> None:
    in_order, arrived = steps(ordered, "window")
    partition = drive(folder, arrived, plan)
    found = said(partition, "test-tumbling", "test-sliding", "test-session")
    assert sorted(found) == recount(in_order[:-1])
    assert [one[3] for one in found] == sorted(one[3] for one in found), "in the order of their ends"
    assert partition.outputs("late") == []
    assert not any(partition.committed.tables.get(name) for name in ("test-tumbling", "test-sliding", "test-session"))


def pairs(ordered: list[Step]) -> list[Any]:
    """Matches and timeouts of steps, by hand: the newest free first half before each second one."""
    found: list[Any] = []
    for session in "abc":
        free: list[Step] = []
        own = [step for step in ordered if step.session == session]
        for step in sorted(own, key=lambda step: (step.ts, step.action == "then", msgspec.json.encode(step.value))):
            if step.action == "first":
                free.append(step)
                continue
            near = [first for first in free if first.ts >= step.ts - 40]
            if near:
                free.remove(near[-1])
                found.append(["match", session, near[-1].value, str(step.value)])
        found += [["timeout", session, first.value] for first in free]
    return sorted(found)


def a_pattern_finds_the_same_pairs_in_whatever_order_they_arrive(
    folder: Path, ordered: list[tuple[str, int, int]], plan: list[tuple[int, str]]
) -> None:
    in_order, arrived = steps(ordered, "first then first then then")
    partition = drive(folder, arrived, plan)
    assert sorted(said(partition, "match", "timeout")) == pairs(in_order)
    assert not partition.committed.tables.get("test-corrections")


Steps = st.lists(
    st.builds(
        lambda session, ts, action, at: Step(session, START + ts, ts, action, START + at),
        st.sampled_from(["a", "b", "c", "again"]),
        st.integers(0, 150),
        st.sampled_from(["set", "set", "set", "cancel", ""]),
        st.integers(0, 200),
    ),
    max_size=25,
)


def told(arrived: list[Step]) -> tuple[list[Any], list[Step]]:
    """What one event at a time leads to, in order; and who is late."""
    out: list[Any] = []
    late: list[Step] = []
    due: dict[str, int] = {}
    rung: defaultdict[str, int] = defaultdict(int)
    watermark = -1
    for step in arrived:
        if step.ts < watermark:
            late.append(step)
            continue
        if step.action == "set":
            due[step.session] = step.at
        elif step.action == "cancel":
            due.pop(step.session, None)
        out.append(["seen", step.session, step.value])
        watermark = max(watermark, step.ts - LATENESS)
        while due and min(due.values()) <= watermark:
            at, key = min((at, key) for key, at in due.items())
            del due[key]
            rung[key] += 1
            out.append(["ring", key, at, rung[key]])
            if key == "again" and at < START + 100:
                due[key] = at + 7
    return out, late


def timers_fire_once_and_in_order_whatever_the_batches_with_crashes_between(
    folder: Path, arrived: list[Step], plan: list[tuple[int, str]]
) -> None:
    arrived = [*arrived, Step("end", END)]
    out, late = told(arrived)
    partition = drive(folder, arrived, plan)
    assert said(partition) == out
    assert [msgspec.json.decode(one.value, type=Step) for one in partition.outputs("late")] == late
    assert not partition.committed.tables.get("test-alarms")


LAWS: Final = [
    pytest.param(windows_of_shuffled_events_are_those_of_ordered_ones, Ordered, id="windows"),
    pytest.param(a_pattern_finds_the_same_pairs_in_whatever_order_they_arrive, Ordered, id="pattern"),
    pytest.param(timers_fire_once_and_in_order_whatever_the_batches_with_crashes_between, Steps, id="timers"),
]
MANY: Final = pytest.param(300, marks=[pytest.mark.long, pytest.mark.timeout(900)])


@pytest.mark.parametrize("examples", [15, MANY])
@pytest.mark.parametrize(("law", "events"), LAWS)
def test_neither_order_nor_batches_nor_crashes_change_what_comes_out(
    tmp_path_factory: pytest.TempPathFactory, law: Any, events: Any, examples: int
) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(events, Plan)
    def check(happens: Any, plan: list[tuple[int, str]]) -> None:
        law(tmp_path_factory.mktemp("p"), happens, plan)

    check()


# -- late events ------------------------------------------------------------------------------------------------------


def test_a_late_event_goes_to_late_as_it_came_with_how_late_it_is(folder: Path) -> None:
    late = Step("b", START + 75)

    async def body(partition: Partition) -> None:
        await partition.send([Step("a", START + 100), Step("c", START + 80), late])

    partition = run(folder, body)
    assert [key for _, key, _ in said(partition)] == ["a", "c"]
    (copy,) = partition.outputs("late")
    assert (copy.key, copy.value) == (b"b", msgspec.json.encode(late))
    assert copy.headers["source"] == "steps/0/2"
    assert copy.headers["late-ms"] == "5"
    assert copy.headers["event-time"] == "2023-11-14T22:13:20.075Z"
    assert copy.headers["watermark"] == "2023-11-14T22:13:20.080Z"
    assert {"traceparent", "time"} <= copy.headers.keys()


def test_an_event_ahead_of_the_clock_makes_nobody_late_and_waits_for_its_time(folder: Path) -> None:
    ahead = Step("b", 4_000_000_000_000, 1, "window")

    async def body(partition: Partition) -> None:
        await partition.send([Step("a", START + 100), ahead, Step("c", START + 90)])

    partition = run(folder, body)
    assert [key for _, key, _ in said(partition)] == ["a", "b", "c"]
    assert partition.committed.watermark == START + 80
    assert partition.committed.tables["test-tumbling"].keys() == {b"b"}


def test_the_watermark_never_goes_back_not_even_with_more_lateness_after_a_restart(
    folder: Path, patch: pytest.MonkeyPatch
) -> None:
    async def body(partition: Partition) -> None:
        await partition.send([Step("a", START + 100)])
        partition.commit()
        partition._settings = partition._settings.model_copy(update={"allowed_lateness": ms(1000)})
        await partition.crash()
        await partition.send([Step("b", START + 70), Step("c", START + 85)])

    partition = run(folder, body)
    assert [key for _, key, _ in said(partition)] == ["a", "c"]
    assert partition.committed.watermark == START + 80


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


def test_a_topic_with_a_backlog_holds_the_watermark_back_and_an_idle_one_does_not(folder: Path) -> None:
    others = Agent(OTHERS, follow, (SAID,), event_time=True)
    backlog = [Step("b", START + at, at, "window") for at in (10, 30, 60, 90)]

    async def body(partition: Partition) -> None:
        partition.publish(backlog, "others")
        await partition.send([Step("a", START + 1000)])
        await partition.read(1, "others")
        partition.commit()
        await partition.crash()  # and it isn't forgotten who was behind
        await partition.send([Step("a", START + 1001)])
        while await partition.read(1, "others"):
            pass
        partition.commit()
        assert partition.committed.watermark == START + 1001 - LATENESS
        await partition.send([Step("a", START + 2000)])

    partition = run(folder, body, FOLLOW, others)
    assert partition.outputs("late") == []
    assert said(partition, "test-tumbling") == [
        ["test-tumbling", "b", START, START + 50, [10, 30]],
        ["test-tumbling", "b", START + 50, START + 100, [60, 90]],
    ]
    assert partition.committed.watermark == START + 2000 - LATENESS


def test_the_watermark_does_not_pass_an_event_that_another_agent_still_has(folder: Path) -> None:
    gate, has = asyncio.Event(), asyncio.Event()

    async def slowly(stream: Stream[Step]) -> None:
        async for batch in stream:
            for step in batch:
                has.set()
                await gate.wait()
                work(step)

    async def body(partition: Partition) -> None:
        await partition.send([Step("b", START + 10, 1, "window"), Step("b", START + 60)])
        partition.publish([Step("b", START + 45, 2, "window")], "others")
        reading = asyncio.create_task(partition.read(10, "others"))
        await has.wait()
        await partition.send([Step("a", START + 1000), Step("a", START + 1001)])
        partition.commit()
        assert not said(partition, "test-tumbling")
        gate.set()
        await reading

    partition = run(folder, body, FOLLOW, Agent(OTHERS, slowly, (SAID,), event_time=True))
    assert said(partition, "test-tumbling") == [["test-tumbling", "b", START, START + 50, [1, 2]]]
    assert partition.committed.watermark == START + 1001 - LATENESS


# -- what goes wrong ---------------------------------------------------------------------------------------------------


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


# -- firing between slices ---------------------------------------------------------------------------------------------


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


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


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
