"""How much a commit carries: never more than it may, and all of it in the end."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.topics import Direction, TopicSpec
from engine import quota as module
from engine.agent import Agent, Stream
from engine.batch import current_slice
from engine.quota import GOAL_S, LEAST, MAX_STAGED, SOME, Quota, weigh
from engine.table import Table
from tests.partition import Partition


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


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=12), most=st.integers(1, 5), crash=st.booleans())
async def test_a_commit_takes_no_slice_more_than_it_may_and_none_is_lost(
    tmp_path: Path, sizes: list[int], most: int, crash: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for bound in ("MAX_STAGED", "SOME", "LEAST"):
            patch.setattr(module, bound, most)
        async with Partition(AGENTS, [steps], tmp_path, patch) as partition:
            for size in sizes:
                await partition.send([Step("ann")] * size)
            before = 0
            for turn in range(sum(sizes)):
                partition.commit()
                done = partition.committed.positions["steps"]
                assert done == len(partition.outputs("counted"))
                assert done - before < most + max(sizes)
                if done == sum(sizes):
                    break
                before = done
                if crash and turn == 1:
                    await partition.crash()
                    await partition.send([], batch=1)
            assert len(partition.outputs("counted")) == sum(sizes)
            raw = partition.task.shard(steps.name).finished(b"ann")
            assert steps.decode(raw) == sum(sizes)


async def test_an_erasure_waits_for_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("MAX_STAGED", "SOME", "LEAST"):
        monkeypatch.setattr(module, bound, 2)
    async with Partition(AGENTS, [steps], tmp_path, monkeypatch) as partition:
        for _ in range(4):
            await partition.send([Step("ann")])  # two of them have to wait
        await partition.send([Step("ann")], ERASURES.name)
        assert partition.task.shard(steps.name).get(b"ann") is None
        await partition.send([Step("ann")])
        for _ in range(5):
            partition.commit()
        raw = partition.task.shard(steps.name).finished(b"ann")
        assert steps.decode(raw) == 1 + 2  # those that waited were given up, and came again behind it
        assert partition.committed.positions == {"steps": 5, "erasures": 1}
        assert partition.committed.erased == "erasures/0/0"
