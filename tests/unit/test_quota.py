"""How much a commit carries: never more than it may, and all of it in the end."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.topics import Direction, TopicSpec
from engine.agent import Agent, Stream
from engine.batch import current_slice
from engine.changelog import POSITIONS
from engine.quota import GOAL_S, LEAST, MAX_STAGED, SOME, Quota, weigh
from engine.table import Table
from engine.testing import InMemory, in_memory
from engine.testing.log import changelog_of


class Step(msgspec.Struct):
    session: str


class Steps(Table[str, int]):
    """session -> number of steps."""

    name = "quota-steps"


STEPS = TopicSpec("steps", "session", Step, Direction.IN)
COUNTED = TopicSpec("counted", "session", Step, Direction.OUT)
ERASURES = TopicSpec("erasures", "session", Step, Direction.IN)
steps = Steps()


async def count(stream: Stream[Step]) -> None:
    async for batch in stream:
        for step in batch:
            steps[step.session] = (steps.get(step.session) or 0) + 1
            current_slice().send(COUNTED, step.session, step)


async def erase(stream: Stream[Step]) -> None:
    async def handle(request: Step) -> None:
        s = current_slice()
        if s.task.erase(s, request.session) is not None:
            s.finish()

    await stream.each(handle, concurrency=1)


AGENTS = [Agent(STEPS, count, (COUNTED,)), Agent(ERASURES, erase)]


def fits(quota: Quota, now: float = 0.0) -> int:
    """How many records the next commit may have."""
    most = 0
    while not quota.full(now):
        quota.add(1)
        most += 1
    quota.add(-most)
    return most


def commit(quota: Quota, records: int, took: float, partitions: int = 4) -> None:
    quota.add(records)
    quota.take(0.0, partitions)
    quota.committed(took)


def test_a_commit_carries_twice_what_the_last_one_did_or_what_slow_ones_can() -> None:
    quota = Quota()
    carried = []
    for _ in range(8):
        carried.append(fits(quota))
        commit(quota, carried[-1], 0.05)
    assert carried == [SOME, 2 * SOME, 4 * SOME, 8 * SOME, *[MAX_STAGED] * 4]
    commit(quota, 10_000, GOAL_S)
    assert (fits(quota), quota.piece) == (10_000, MAX_STAGED)
    commit(quota, 10_000, 10 * GOAL_S)
    assert (fits(quota), quota.piece) == (1000, MAX_STAGED)
    commit(quota, 1000, 10 * GOAL_S)
    assert (fits(quota), quota.piece) == (100, 100)
    commit(quota, 100, 1000 * GOAL_S)
    assert (fits(quota), quota.piece) == (LEAST, LEAST)
    commit(quota, 1, 0.05)
    assert (fits(quota), quota.piece) == (SOME // 4, MAX_STAGED)
    commit(quota, 1, 0.05, partitions=1000)
    assert fits(quota) == SOME // 8
    for _ in range(8):
        commit(quota, 1, 0.05, partitions=1000)
    assert fits(quota) == LEAST


def test_while_a_commit_lasts_the_next_one_gets_what_that_tells_the_broker_can_take() -> None:
    quota = Quota()
    commit(quota, 2000, 0.05)
    quota.add(2000)
    quota.take(0.0, 4)
    assert fits(quota, GOAL_S) == 4000
    assert fits(quota, 4 * GOAL_S) == 500
    assert fits(quota, 1000 * GOAL_S) == LEAST


def test_commits_that_fail_carry_less() -> None:
    quota = Quota()
    quota.add(5)
    quota.take(0.0, 4)
    quota.failed()
    quota.committed(100.0)  # of one that nobody waits for any more
    assert fits(quota, 100.0) == SOME // 8
    for _ in range(10):
        quota.failed()
    assert fits(quota) == LEAST


@given(sizes=st.lists(st.integers(0, 1000), max_size=100))
def test_values_are_weighed_to_within_what_bounds_need(sizes: list[int]) -> None:
    values = [bytes(size) or None for size in sizes]
    weight = weigh(values, lambda value: value)
    if len(sizes) < 32:
        assert weight == sum(sizes)
    assert weigh([b"x" * 100] * len(sizes), lambda value: value) == pytest.approx(100 * len(sizes), rel=0.5)
    assert weight <= 1000 * 1.5 * len(sizes)


class Narrow(Quota):
    """However quick its commits are, none carries more than so many records."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._bound = most

    @property
    def piece(self) -> int:
        return self._bound

    def full(self, now: float) -> bool:
        return self._finished >= self._bound


def narrow(trial: InMemory, most: int) -> None:
    """For this life of the trial."""
    cast(Any, trial.engine.tasks[0])._quota = Narrow(most)


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=12), most=st.integers(1, 5), crash=st.booleans())
async def test_a_commit_takes_no_slice_more_than_it_may_and_none_is_lost(
    sizes: list[int], most: int, crash: bool
) -> None:
    async with in_memory(AGENTS, [steps]) as trial:
        narrow(trial, most)
        for size in sizes:
            await trial.send(STEPS, [Step("ann")] * size)
        before = 0
        for turn in range(sum(sizes)):
            await trial.commit()
            done = trial.positions()["steps"]
            assert done == len(trial.outputs(COUNTED))
            assert done - before < most + max(sizes)
            if done == sum(sizes):
                break
            before = done
            if crash and turn == 1:
                await trial.crash()
                narrow(trial, most)
                while await trial.read(STEPS, 1):
                    pass
        assert len(trial.outputs(COUNTED)) == sum(sizes)
        assert trial.value(steps, "ann") == sum(sizes)


async def test_an_erasure_waits_for_no_commit() -> None:
    async with in_memory(AGENTS, [steps]) as trial:
        narrow(trial, 2)
        for _ in range(4):
            await trial.send(STEPS, [Step("ann")])  # two of them have to wait
        await trial.send(ERASURES, [Step("ann")])
        assert trial.engine.tasks[0].shard(steps.name).get(b"ann") is None
        await trial.send(STEPS, [Step("ann")])
        for _ in range(5):
            await trial.commit()
        assert trial.value(steps, "ann") == 1 + 2  # those that waited were given up, and came again behind it
        assert trial.positions() == {"steps": 5, "erasures": 1}
        marker = trial.log.marker(changelog_of(trial.settings.app_id, "", POSITIONS, 0))
        assert marker.erased == "erasures/0/0"
