"""Who reads all of a topic without being in a group: nothing is dealt out, and nothing is noted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from core.topics import TopicSpec
from engine.connection import Connection


class Onlooker(NamedTuple):
    """A consumer that has all partitions, and where they began and ended when it started; it has sought nothing yet."""

    consumer: AIOKafkaConsumer
    begins: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]


@asynccontextmanager
async def onlooking(
    connection: Connection, topic: TopicSpec[Any], lost: Literal["earliest", "latest"]
) -> AsyncIterator[Onlooker]:
    """lost: where it goes on where the broker no longer has what it was about to read. Raises KafkaError."""
    settings = connection.settings
    partitions = [TopicPartition(settings.topic_prefix + topic.name, n) for n in range(settings.partitions)]
    consumer = AIOKafkaConsumer(
        **connection.options, isolation_level=connection.isolation, enable_auto_commit=False, auto_offset_reset=lost
    )
    try:
        await consumer.start()
        consumer.assign(partitions)
        yield Onlooker(consumer, await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions))
    finally:
        await consumer.stop()
