"""A compacted topic read whole by every worker, outside the group: what all of them must know."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord

from core.errors import DecodeError
from core.events import Source
from core.topics import TopicSpec
from engine.admission import REFUSED
from engine.codec import codec_of, explain
from engine.connection import Connection
from engine.onlooker import onlooking

log = logging.getLogger(__name__)

E = TypeVar("E")

RETRY_S: Final = 1.0


class Feed(Generic[E]):
    """Calls back with every value, from the first to those that are still to come; None for a deleted key."""

    def __init__(
        self,
        connection: Connection,
        topic: TopicSpec[E],
        on_value: Callable[[str, E | None], Awaitable[None]],
        on_foreign: Callable[[str, str], Awaitable[None]] | None = None,
    ) -> None:
        """on_foreign: told the key and the reason where a value is not of the topic's type; else it is left out with a
        line in the log."""
        self._connection = connection
        self._topic = topic
        self._on_value = on_value
        self._on_foreign = on_foreign
        self._decode = codec_of(topic.value).decode
        self._positions: dict[TopicPartition, int] = {}
        self.caught_up = asyncio.Event()
        """Set once everything that stood there at the start has been called back with."""
        self.place = Source(topic.name, 0, 0)
        """Of the value that it calls back with."""

    async def run(self) -> None:
        """Reads for ever; a broker that goes away is waited for. Raises KafkaError when it doesn't let us."""
        while True:
            try:
                await self._read()
            except REFUSED:
                raise
            except (KafkaError, OSError) as error:
                log.warning("Reading %s: %r; trying again", self._topic.name, error)
                await asyncio.sleep(RETRY_S)

    async def _read(self) -> None:
        async with onlooking(self._connection, self._topic, "earliest") as (consumer, begins, ends):
            await self._begin(begins, ends)
            for tp, begin in begins.items():
                consumer.seek(tp, max(self._positions.get(tp, 0), begin))
            while True:
                if not self.caught_up.is_set() and await self._at_end(consumer, ends):
                    self.caught_up.set()
                for tp, records in (await consumer.getmany(timeout_ms=200)).items():
                    await self._take(tp, records)
                    self._positions[tp] = records[-1].offset + 1

    async def _begin(self, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
        """Where the topic begins and ends, before it is read, or read on."""

    async def _at_end(self, consumer: AIOKafkaConsumer, ends: dict[TopicPartition, int]) -> bool:
        for tp, end in ends.items():
            if await consumer.position(tp) < self._connection.end(end, consumer.highwater(tp)):
                return False
        return True

    async def _take(self, tp: TopicPartition, records: Sequence[ConsumerRecord]) -> None:
        """Records of one partition, in their order."""
        for record in records:
            self.place = Source(tp.topic, tp.partition, record.offset)
            await self._call(record.key, record.value)
            self._positions[tp] = record.offset + 1

    async def _call(self, key: bytes | None, raw: bytes | None) -> None:
        name = (key or b"").decode("utf-8", "backslashreplace")
        try:
            value = None if raw is None else self._decode(raw)
        except (DecodeError, ValueError) as error:
            log.error("%s holds a value for %r that is not ours (%s): left out", self.place, name[:100], explain(error))
            if self._on_foreign is not None:
                await self._on_foreign(name, str(explain(error)))
            return
        await self._on_value(name, value)


class RecordFeed(Feed[bytes]):
    """As Feed, with raw records as they come, many at a time; from where somebody has read to before."""

    def __init__(
        self,
        connection: Connection,
        topic: TopicSpec[bytes],
        on_start: Callable[[Mapping[int, tuple[int, int]]], Awaitable[Mapping[int, int]]],
        on_records: Callable[[int, Sequence[ConsumerRecord]], Awaitable[None]],
    ) -> None:
        """on_start: told the first and the next offset of each partition, it says from where on each is to be read;
        those that it leaves out, from the first. on_records: called with a partition and its next records."""
        super().__init__(connection, topic, self._ignored)
        self._on_start = on_start
        self._on_records = on_records
        self._started = False

    async def _begin(self, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
        if not self._started:
            places = await self._on_start({tp.partition: (begin, ends[tp]) for tp, begin in begins.items()})
            self._positions = {tp: places[tp.partition] for tp in begins if tp.partition in places}
            self._started = True

    async def _take(self, tp: TopicPartition, records: Sequence[ConsumerRecord]) -> None:
        await self._on_records(tp.partition, records)

    async def _ignored(self, key: str, value: bytes | None) -> None:
        """Records never come one by one."""
