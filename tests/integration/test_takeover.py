"""What a new owner of a partition waits for, and what a former one is no longer let do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from core.errors import FencedError, NotAMemberError, TaskError
from core.settings import Settings
from core.topics import OBSERVATIONS, PREDICTIONS, TopicSpec, changelog
from engine.admin import ensure_topics
from engine.connection import Connection, connect
from engine.producer import Member, Producer
from engine.takeover import GRACE_S, Takeover
from tests.kafka import Broker

LIMIT_S = 30.0


@dataclass
class Rig:
    """A group with one member, the former owner, and an heir that looks on."""

    connection: Connection
    source: TopicPartition
    positions: TopicPartition
    output: TopicPartition
    consumer: AIOKafkaConsumer
    """The former owner's, and for the questions that any member may ask, the heir's."""
    producers: list[Producer] = field(default_factory=list)

    @property
    def member(self) -> Member:
        coordinator = self.consumer._coordinator
        return coordinator.generation, coordinator.member_id, None

    async def producer(self, name: str) -> Producer:
        producer = Producer(self.connection, f"{self.connection.settings.app_id}-{name}")
        await producer.start()
        self.producers.append(producer)
        return producer

    async def write(self, producer: Producer) -> None:
        """Locks the partition and writes a marker, without an end."""
        await producer.begin(self.member, {self.source: 7}, [self.positions])
        await producer.send({self.positions: [marker(producer)]})

    async def takeover(self) -> None:
        """As a task does that opens. Returns when everything is decided."""
        async with self.heir() as heir:
            await heir.decided([self.source], self.positions, [], [self.output])

    @asynccontextmanager
    async def heir(self) -> AsyncIterator[Takeover]:
        """A worker that takes over, for as long as a test may take."""
        producer = await self.producer("heir")

        async def end_own(targets: Iterable[TopicPartition], commit: bool) -> None:
            await producer.end_empty(targets, commit=commit)

        takeover = Takeover(self.connection, self.consumer, f"{self.connection.settings.app_id}-heir", end_own)
        try:
            async with asyncio.timeout(LIMIT_S):
                yield takeover
        finally:
            await takeover.stop()

    async def visible(self) -> int:
        """Markers that a read_committed reader finds."""
        reader = AIOKafkaConsumer(**self.connection.options, isolation_level="read_committed", enable_auto_commit=False)
        await reader.start()
        try:
            reader.assign([self.positions])
            await reader.seek_to_beginning(self.positions)
            end = (await reader.end_offsets([self.positions]))[self.positions]
            found = 0
            while await reader.position(self.positions) < end:
                found += len((await reader.getmany(timeout_ms=200)).get(self.positions, ()))
            return found
        finally:
            await reader.stop()


def marker(producer: Producer) -> Any:
    """A batch of one record."""
    builder = producer.new_builder()
    builder.append(timestamp=None, key=b"marker", value=b"{}")
    return builder


@pytest.fixture
async def rig(kafka: Broker, prefix: str) -> AsyncIterator[Rig]:
    settings = Settings(app_id=f"{prefix}app", topic_prefix=prefix, partitions=1)
    connection = await connect(settings, kafka.url)
    specs: list[TopicSpec[Any]] = [changelog(settings.app_id, "positions"), OBSERVATIONS, PREDICTIONS]
    await ensure_topics(kafka.bootstrap, specs, settings)
    source, positions, output = (
        TopicPartition(prefix + spec.name, 0) for spec in (OBSERVATIONS, specs[0], PREDICTIONS)
    )
    consumer = AIOKafkaConsumer(
        source.topic,
        **connection.options,
        client_id=f"{settings.app_id}-former",
        group_id=settings.app_id,
        isolation_level="read_committed",
    )
    await consumer.start()
    rig = Rig(connection, source, positions, output, consumer)
    async with asyncio.timeout(LIMIT_S):
        while source not in consumer.assignment():
            await consumer.getmany(timeout_ms=100)
    yield rig
    for producer in rig.producers:
        await producer.stop()
    await consumer.stop()


async def test_whoever_is_not_in_the_group_is_refused_before_it_writes_anything(rig: Rig) -> None:
    producer = await rig.producer("zombie")
    generation, member_id, _ = rig.member
    for stranger in [(generation - 1, member_id, None), (generation, "somebody", None)]:
        with pytest.raises(NotAMemberError):
            await producer.begin(stranger, {rig.source: 7}, [rig.positions])
    await rig.takeover()


async def test_a_transaction_that_is_about_to_end_is_waited_for(rig: Rig) -> None:
    former = await rig.producer("former")
    async with former.transaction():
        await rig.write(former)
        waiting = asyncio.create_task(rig.takeover())
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done, "the heir went on while the transaction was open"
    await waiting
    assert await rig.visible() == 1


async def test_a_dead_workers_transaction_is_taken_at_once(rig: Rig) -> None:
    dead = await rig.producer("dead")  # the group knows a member "former", and nobody of this name
    await rig.write(dead)
    began = time.monotonic()
    await rig.takeover()
    assert time.monotonic() - began < GRACE_S
    assert await rig.visible() == 0


async def test_a_transaction_that_nobody_ends_is_taken_from_its_producer(rig: Rig) -> None:
    former = await rig.producer("former")
    await rig.write(former)
    await rig.takeover()
    assert await rig.visible() == 0
    with pytest.raises(FencedError):
        async with former.transaction():
            pass


async def test_a_lock_that_was_left_behind_is_taken_too_with_nothing_written(rig: Rig) -> None:
    former = await rig.producer("former")
    await former.begin(rig.member, {rig.source: 7}, [rig.positions])
    await rig.takeover()
    with pytest.raises(FencedError):
        await rig.write(former)


async def test_a_producer_that_lost_its_broker_in_the_middle_says_so_at_once_and_never_stops_the_worker(
    rig: Rig,
) -> None:
    former = await rig.producer("former")
    await rig.write(former)
    former._producer._txn_manager.fatal_error(KafkaError("the connection was lost"))  # as its sender does when it dies
    former._producer._sender.sender_task.cancel()
    async with asyncio.timeout(LIMIT_S / 6):
        await asyncio.wait([former._producer._sender.sender_task])
        with pytest.raises(TaskError):
            await former.begin(rig.member, {TopicPartition(rig.source.topic, 1): 0}, [rig.output])
    with pytest.raises(TaskError):
        await former.send({rig.positions: [marker(former)]})


async def test_what_a_dead_worker_left_in_several_partitions_is_ended_in_each_whoever_comes_first(rig: Rig) -> None:
    await rig.producer("dead")
    name = f"{rig.connection.settings.app_id}-dead"
    async with rig.heir() as heir:
        for _ in range(5):
            # Each in the dead one's name, which only one producer can have: raises what the broker refuses.
            ending = (heir._end_in_the_name_of(name, [tp], True) for tp in (rig.positions, rig.output))
            await asyncio.gather(*ending, heir._fence(name))


async def test_another_applications_transaction_in_an_output_is_left_alone_and_holds_nobody_up_for_ever(
    rig: Rig,
) -> None:
    like_ours = f"{rig.connection.settings.app_id}-2-worker"  # of an application that is called as ours, with a -2
    stranger = AIOKafkaProducer(**rig.connection.options, transactional_id=like_ours)
    await stranger.start()
    async with stranger.transaction():
        await stranger.send_and_wait(rig.output.topic, b"{}", partition=0)
        await rig.takeover()
    await stranger.stop()
