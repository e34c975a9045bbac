"""What a worker counts of its own work: through the real agent, task and commits of a partition, without a broker."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from aiokafka import TopicPartition

from core.topics import Direction, TopicSpec
from engine.agent import Agent, Stream
from engine.batch import current_slice
from engine.early import EarlyOutbox
from engine.meters import Meters
from engine.pulse import Pulse
from engine.testing import InMemory, in_memory

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Click(msgspec.Struct):
    id: str
    session: str


CLICKS = TopicSpec("clicks", "session", Click, Direction.IN)
DONE = TopicSpec("done", "session", Click, Direction.OUT)


async def count(stream: Stream[Click]) -> None:
    async for batch in stream:
        for click in batch:
            if click.id == "bad":
                raise ValueError("a click that nobody can process")
            current_slice().send(DONE, click.session, click)
        batch.lap("count")


async def count_each(stream: Stream[Click]) -> None:
    async def handle(click: Click) -> None:
        current_slice().send(DONE, click.session, click)

    await stream.each(handle, concurrency=4)


def clicks(*ids: str) -> list[Click]:
    return [Click(name, f"s{i}") for i, name in enumerate(ids)]


@pytest.fixture
async def trial() -> AsyncIterator[InMemory]:
    async with in_memory([Agent(CLICKS, count, (DONE,))], []) as trial:
        yield trial


async def work(trial: InMemory, batch: int) -> None:
    """Has all that was published worked on, so many in a batch."""
    while await trial.read(CLICKS, batch):
        pass


def waits(trial: InMemory) -> bool:
    return trial.engine.tasks[0].waits_since is not None


async def test_records_are_counted_when_they_are_read_and_when_they_are_committed(trial: InMemory) -> None:
    meters = trial.engine.meters
    trial.publish(CLICKS, clicks("a", "b", "c"))
    await work(trial, 2)
    assert meters.read == {"clicks": 3}
    assert not meters.committed
    assert waits(trial)
    await trial.commit()
    assert meters.committed == {"clicks": 3}
    assert meters.outputs == {"done": 3}
    assert meters.commits.count == 1
    assert not waits(trial)
    assert meters.batches.count == 2


async def test_every_stage_of_every_event_is_timed(trial: InMemory) -> None:
    trial.publish(CLICKS, clicks("a", "b", "c"))
    await work(trial, 2)
    await trial.commit()
    meters = trial.engine.meters
    assert {name: stage.count for name, stage in meters.stages.items()} == dict.fromkeys(
        ("arrive", "queue", "decode", "count", "work", "commit"), 3
    )
    assert meters.latency.count == 3


async def test_latency_is_counted_from_the_records_own_times(trial: InMemory) -> None:
    now = datetime.now(UTC)
    for click, ago in zip(clicks(*"abcd"), (9.0, 9.0, 0.1, 0.0), strict=True):
        trial.publish(CLICKS, [click], at=now - timedelta(seconds=ago))
    await trial.read(CLICKS, 4)
    await trial.commit()
    latency = trial.engine.meters.latency
    assert latency.count == 4
    assert latency.quantile(0.75) == pytest.approx(8.75, abs=1.25)  # half of them count as the oldest
    assert latency.quantile(0.25) == pytest.approx(0.0, abs=0.5)  # half as the youngest
    assert latency.counts[-1] == 0


async def test_a_dead_letter_is_counted_by_its_reason(trial: InMemory) -> None:
    await trial.send(CLICKS, clicks("a", "bad", "b"))
    await trial.send(CLICKS, [b"{"], key="s0")
    await trial.commit()
    meters = trial.engine.meters
    assert meters.dead_letters == {("clicks", "ValueError"): 1, ("clicks", "DecodeError"): 1}
    assert meters.committed == {"clicks": 4}
    assert meters.read["clicks"] > 4  # what comes again after an error is read again


async def test_events_that_are_worked_on_one_by_one_are_timed_too() -> None:
    async with in_memory([Agent(CLICKS, count_each, (DONE,))], []) as trial:
        await trial.send(CLICKS, clicks("a", "b", "c"))
        await trial.settle()
        meters = trial.engine.meters
        assert meters.stages["work"].count == 3
        assert meters.committed == {"clicks": 3}


async def test_a_slice_shows_the_trace_that_its_sender_keeps(trial: InMemory) -> None:
    kept, unkept = clicks("a", "b")
    trial.publish(CLICKS, [kept], headers={"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"})
    trial.publish(CLICKS, [unkept], headers={"traceparent": f"00-{'1' * 32}-b7ad6b7169203331-00"})
    await work(trial, 1)
    await trial.commit()
    for histogram in (trial.engine.meters.latency, trial.engine.meters.stages["work"]):
        assert {exemplar.trace for exemplar in histogram.exemplars if exemplar} == {TRACE}


async def test_outputs_that_do_not_wait_for_a_commit_count_when_the_broker_has_them() -> None:
    class Records:
        def record_count(self) -> int:
            return 3

    async def send(builders: Any) -> dict[Any, int]:
        return {}

    async def failed(error: Exception) -> None:
        raise error

    meters = Meters()
    outbox = EarlyOutbox(cast(Any, SimpleNamespace(new_builder=None, send=send)), failed, meters.sent)
    outbox._builders = {TopicPartition("replies", 0): [Records()]}
    await outbox._send()
    assert meters.outputs == {"replies": 3}


# -- the pulse ---------------------------------------------------------------------------------------------------------


def task(**given: Any) -> Any:
    values = {
        "open": True,
        "reason": "",
        "topics": ["t"],
        "committed": {"t": 90},
        "waits_since": None,
        "room": lambda topic: True,
        "next_offset": lambda topic: 100,
    }
    return SimpleNamespace(**values | given)


def engine(**tasks: Any) -> Any:
    return SimpleNamespace(
        name="one",
        meters=Meters(),
        tasks={int(name.removeprefix("p")): value for name, value in tasks.items()},
        end=lambda tp: 120,
        begins=lambda tp: 50,
        reading_at=lambda tp: 119,
        models=SimpleNamespace(status=lambda: {"churn": {"version": "2", "role": "active"}}),
    )


def test_a_snapshot_says_how_the_last_seconds_were(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    worker = engine(p0=task(waits_since=now), p1=task(open=False, reason="restoring its tables"))
    pulse = Pulse(worker)
    worker.meters.committed["t"] += 10**6  # long ago
    worker.meters.latency.observe(30.0, 10**6)
    for _ in range(12):
        now += 1.0
        worker.meters.committed["t"] += 500
        worker.meters.latency.observe(0.012, 500)
        pulse.look(0.1)
    snapshot = pulse.snapshot()
    assert snapshot.events_per_s == pytest.approx(500)
    assert snapshot.latency_p99_s is not None
    assert 0.01 < snapshot.latency_p99_s <= 0.015
    assert snapshot.commit_age_s == pytest.approx(12.0)
    assert snapshot.partitions_open == [0]
    assert snapshot.partitions_opening == {1: "restoring its tables"}
    assert snapshot.lag == {"t": {0: 30}}
    assert snapshot.models["churn"]["version"] == "2"


def test_a_quiet_worker_has_no_latency() -> None:
    snapshot = Pulse(engine()).snapshot()
    assert snapshot.latency_p50_s is snapshot.latency_p99_s is None
    assert snapshot.events_per_s == 0


def test_what_was_read_and_committed_is_no_lag_though_a_transactions_marker_follows() -> None:
    done = task(committed={"t": 119}, next_offset=lambda topic: 119)
    worker = engine(p0=done)
    worker.reading_at = lambda tp: 120
    assert Pulse(worker).lag() == {"t": {0: 0}}


def test_time_without_room_is_counted() -> None:
    worker = engine(p0=task(room=lambda topic: False), p1=task(), p2=task(open=False, room=lambda topic: False))
    pulse = Pulse(worker)
    pulse.look(0.1)
    pulse.look(0.35)
    assert worker.meters.crowded == {0: pytest.approx(0.45)}
    assert worker.meters.loop_lag.quantile(1.0) == pytest.approx(0.25, abs=0.16)


def test_a_commit_of_several_partitions_is_one() -> None:
    meters = Meters()
    now = time.monotonic()
    for taken in (now - 0.2, now - 0.1999, now - 0.1998):
        meters.commit_ended(taken, [])
    meters.commit_ended(time.monotonic(), [])
    assert meters.commits.count == 2
