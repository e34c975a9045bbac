"""Records that a worker writes for itself, outside any partition: model status, alerts of its own, control requests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import murmur2

from core.topics import TopicSpec
from engine.codec import codec_of
from engine.connection import Connection
from engine.deadline import within

E = TypeVar("E")

STOP_S: Final = 3.0


def partition_of(key: bytes, partitions: int) -> int:
    """Where every Kafka client puts a key: murmur2 of its bytes."""
    return int(murmur2(key) & 0x7FFFFFFF) % partitions


class Publisher:
    """A plain producer, one record at a time."""

    def __init__(self, connection: Connection) -> None:
        self._prefix = connection.settings.topic_prefix
        largest = connection.settings.max_record + 65_536  # as the topics take
        self._producer = AIOKafkaProducer(**connection.options, acks="all", max_request_size=2 * largest)

    async def start(self) -> None:
        """Connects."""
        await self._producer.start()

    async def publish(self, topic: TopicSpec[E], key: str, value: E) -> None:
        """Returns once the broker has it. Raises KafkaError."""
        raw = codec_of(topic.value).encode(value)
        await self._producer.send_and_wait(self._prefix + topic.name, raw, key=key.encode())

    async def put(
        self,
        topic: TopicSpec[bytes],
        key: bytes,
        value: bytes | None,
        partition: int,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """As it is, to a partition that somebody else has chosen. Returns once the broker has it. Raises KafkaError."""
        await self._producer.send_and_wait(
            self._prefix + topic.name, value, key=key, partition=partition, headers=list(headers)
        )

    async def stop(self) -> None:
        """Sends what is left, if the broker takes it soon, and disconnects."""
        with suppress(TimeoutError):
            await within(STOP_S, self._producer.stop())
