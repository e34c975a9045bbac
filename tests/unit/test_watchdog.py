"""What ends a worker that looks alive, and what doesn't."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition

from engine.watchdog import COMMIT_S, JOIN_S, READ_S, Watchdog


@pytest.fixture
def engine() -> Any:
    """A worker with one open partition that has read all there is: everything is well."""
    partition = SimpleNamespace(
        open=True,
        waits_since=None,
        topics=["t"],
        next_offset=lambda topic: 10,
        room=lambda topic: True,
    )
    consumer = SimpleNamespace(
        _closed=False,
        _coordinator=SimpleNamespace(_coordination_task=None, _pending_exception=None, generation=3),
        _fetcher=SimpleNamespace(_fetch_task=None),
        highwater=lambda tp: 10,
        assignment=lambda: {TopicPartition("t", 0)},
    )
    return SimpleNamespace(
        started_consuming=True,
        consumer=consumer,
        tasks={0: partition},
        dying=None,
        reading_at=lambda tp: 10,
        grown=lambda: None,
    )


def after(engine: Any, seconds: float) -> Any:
    dog = Watchdog(engine)
    now = time.monotonic()
    assert dog.look(now) is None
    return dog.look(now + seconds)


def test_a_quiet_worker_lives_for_ever(engine: Any) -> None:
    assert after(engine, 1e6) is None


def test_a_topic_that_ends_with_a_transactions_marker_is_no_lag(engine: Any) -> None:
    engine.consumer.highwater = lambda tp: 11
    engine.reading_at = lambda tp: 11
    assert after(engine, 10 * READ_S) is None


def test_records_that_never_come_end_it(engine: Any) -> None:
    engine.consumer.highwater = lambda tp: 500
    assert "t/0 has records after 10" in str(after(engine, READ_S + 1))
    assert after(engine, READ_S - 1) is None


def test_a_look_between_two_assignments_ends_nothing(engine: Any) -> None:
    def unassigned(tp: TopicPartition) -> int:
        raise AssertionError("Partition is not assigned")  # as aiokafka does

    engine.consumer.highwater, engine.consumer.assignment = unassigned, set
    assert after(engine, 10 * READ_S) is None


def test_work_that_is_never_committed_ends_it(engine: Any) -> None:
    engine.tasks[0].waits_since = time.monotonic()
    assert "has not committed" in str(after(engine, COMMIT_S + 1))


def test_work_after_a_long_silence_is_not_overdue(engine: Any) -> None:
    engine.tasks[0].waits_since = time.monotonic() + 1e4
    assert after(engine, 1e4 + 0.01) is None


def test_a_group_that_never_takes_it_ends_it(engine: Any) -> None:
    engine.consumer._coordinator.generation = -1
    assert "HOMUNCULUS_SESSION_TIMEOUT" in str(after(engine, JOIN_S + 1))


def test_a_group_that_counts_from_zero_has_taken_it(engine: Any) -> None:
    engine.consumer._coordinator.generation = 0
    assert after(engine, 1e6) is None


def test_a_consumer_task_that_has_ended_ends_it(engine: Any) -> None:
    dog = Watchdog(engine)
    engine.consumer._fetcher._fetch_task = SimpleNamespace(done=lambda: True)
    assert "fetch task has ended" in str(dog.look(time.monotonic()))
