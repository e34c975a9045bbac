"""A session that is erased: nothing of it is left, what comes afterwards starts anew, and everybody else stays."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from core.events import Action
from core.topics import Direction, TopicSpec
from engine.agent import Agent, Stream
from engine.batch import current_slice
from engine.table import Shard, Table
from engine.testing import InMemory, in_memory
from engine.testing.log import changelog_of
from engine.timers import Timers
from tables.deployments import Deployments
from tables.sessions import Sessions


class Visit(msgspec.Struct):
    session: str
    ts: int = 1000


class Visits(Table[str, int]):
    """session -> number of visits."""

    name = "erasing-visits"


class Pages(Table[str, int]):
    """session/page -> number of visits."""

    name = "erasing-pages"
    separator = "/"


class Reminders(Timers):
    """session -> when it is reminded."""

    name = "erasing-reminders"


class Products(Table[str, int]):
    """product -> number of visits. No session's."""

    name = "erasing-products"
    of_sessions = False


class Rows(Sessions):
    """session -> its row."""

    name = "erasing-rows"
    __orig_bases__ = Sessions.__orig_bases__  # type: ignore[attr-defined]


VISITS = TopicSpec("visits", "session", Visit, Direction.IN)
REQUESTS = TopicSpec("requests", "session", Visit, Direction.IN)
visits, pages, reminders, products, rows = Visits(), Pages(), Reminders(), Products(), Rows()
TABLES: list[Table[Any, Any]] = [visits, pages, reminders, products, rows]


async def note(stream: Stream[Visit]) -> None:
    async for batch in stream:
        rows.fold(batch.slices, np.array([visit.ts for visit in batch.events], np.float64), np.empty((len(batch), 0)))
        for visit in batch:
            for table, key in ((visits, visit.session), (pages, f"{visit.session}/home"), (products, visit.session)):
                table[key] = (table.get(key) or 0) + 1
            reminders.set(visit.session, 10**14)


async def erase(stream: Stream[Visit]) -> None:
    async def handle(request: Visit) -> None:
        s = current_slice()
        if s.task.erase(s, request.session) is not None:
            s.finish()

    await stream.each(handle, concurrency=1)


TOPICS = {topic.name: topic for topic in (VISITS, REQUESTS)}
AGENTS = [Agent(VISITS, note), Agent(REQUESTS, erase)]


def seen(trial: InMemory, session: str) -> list[int]:
    """What each table knows of a session's visits; a reminder counts as one."""
    found = []
    for table, key in ((visits, session), (pages, f"{session}/home"), (rows, session), (reminders, session)):
        shard = cast(Shard, trial.engine.tasks[0].shard(table.name))
        raw = shard.finished(key.encode())
        if raw is None:
            found.append(0)
        elif table is rows:
            found.append(int(rows.describe(shard, raw)["count"]))
        else:
            found.append(1 if table is reminders else cast(Any, table).decode(raw))
    return found


def expected(count: int) -> list[int]:
    return [count, count, count, min(count, 1)]


Step = st.one_of(
    st.tuples(st.just("visit"), st.sampled_from("ab")),
    st.tuples(st.just("request"), st.sampled_from("ab")),
    st.tuples(st.sampled_from(["read visits", "read requests", "commit", "crash"]), st.just("")),
)


@settings(max_examples=15, deadline=None)
@given(steps=st.lists(Step, max_size=30), batch=st.integers(1, 4))
async def test_whatever_is_erased_committed_or_crashes_only_visits_after_the_erasure_count(
    steps: list[tuple[str, str]], batch: int
) -> None:
    inputs: dict[str, list[str]] = {"visits": [], "requests": []}
    at, counts, sold = Counter[str](), Counter[str](), Counter[str]()
    saved = (at.copy(), counts.copy(), sold.copy())

    def read(topic: str) -> None:
        for session in inputs[topic][at[topic] :]:
            at[topic] += 1
            if topic == "visits":
                counts[session] += 1
                sold[session] += 1
            else:
                counts[session] = 0

    async with in_memory(AGENTS, TABLES, batch=batch) as trial:
        for step, session in [*steps, ("read visits", ""), ("read requests", "")]:
            match step.split():
                case ["visit"]:
                    trial.publish(VISITS, [Visit(session)])
                    inputs["visits"].append(session)
                case ["request"]:
                    trial.publish(REQUESTS, [Visit(session)])
                    inputs["requests"].append(session)
                case ["read", topic]:
                    await trial.work(TOPICS[topic])
                    read(topic)
                case ["commit"]:
                    await trial.commit()
                    saved = (at.copy(), counts.copy(), sold.copy())
                case _:
                    await trial.crash()
                    at, counts, sold = (one.copy() for one in saved)
        await trial.commit()
        await trial.crash()
        for session in "ab":
            assert seen(trial, session) == expected(counts[session])
            raw = cast(Shard, trial.engine.tasks[0].shard(products.name)).finished(session.encode())
            assert (0 if raw is None else products.decode(raw)) == sold[session]
        if inputs["requests"]:
            changelogs = [changelog_of(trial.settings.app_id, "", t.name, 0) for t in TABLES if t is not rows]
            left = {key for changelog in changelogs for key in trial.log.newest(changelog)}
            gone = {s.encode() for s in "ab" if not counts[s] and not sold[s]}
            assert gone.isdisjoint(left)


async def test_a_visit_that_is_at_work_when_its_session_is_erased_counts_afterwards_and_once() -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def handle(visit: Visit) -> None:
        before = visits.get(visit.session, 0)
        if before == 1:
            begun.set()
            await gate.wait()
        visits[visit.session] = (before or 0) + 1

    async def slowly(stream: Stream[Visit]) -> None:
        await stream.each(handle, concurrency=4)

    agents = [Agent(VISITS, slowly), Agent(REQUESTS, erase)]
    async with in_memory(agents, TABLES) as trial:
        await trial.send(VISITS, [Visit("ann"), Visit("ann")])
        await begun.wait()  # the second one has read what the first one wrote
        await trial.send(REQUESTS, [Visit("ann")])
        gate.set()
        await trial.settle()
        assert seen(trial, "ann")[0] == 1
        assert trial.positions() == {"visits": 2, "requests": 1}


def test_deployments_are_no_sessions() -> None:
    assert not Deployments.of_sessions


@pytest.mark.parametrize(
    "request_", [{"action": "erase"}, {"active": "2", "session": "ann"}, {"action": "erase", "session": ""}]
)
def test_only_an_erasure_names_a_session(request_: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        Action.model_validate(request_)
