"""A partition's input once more, beside the group and in order, without what became a dead letter there."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple, Self

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from core.errors import ScoreError, TaskError
from core.topics import DEAD_LETTERS, TopicSpec
from engine import bulk, rights
from engine.connection import Connection
from engine.deadline import within

CHUNK: Final = 200
"""Records that are handed out together: a few ms of work."""
FETCH: Final = 256 << 10
"""Bytes of an answer, about."""
SKEW_MS: Final = 3_600_000
"""By how much a dead letter's time may be before its record's: producers and workers have clocks of their own."""
STOP_S: Final = 5.0
_KEPT: Final = frozenset({ScoreError.__name__})
"""Errors of records that are part of the state all the same: nothing but their answer failed."""


class Reread(NamedTuple):
    """Some records, and the offset behind those that were looked at for them."""

    records: list[Any]
    end: int


class Rereader:
    """Reads one partition of a topic. What it hands out was committed by the partition's task before it was asked for:
    so its dead letters are there."""

    def __init__(self, connection: Connection, consumer: AIOKafkaConsumer, topic: TopicSpec[Any], partition: int):
        prefix = connection.settings.topic_prefix
        self.source = TopicPartition(prefix + topic.name, partition)
        self._connection = connection
        self._consumer = consumer
        self._letters = TopicPartition(prefix + DEAD_LETTERS.name, partition)
        self._source_header = f"{self.source.topic}/{partition}/".encode()
        self._ahead: deque[Any] = deque()
        self._next = 0
        self._dead: dict[int, bool] = {}
        """Offsets of dead letters that were read and not come to yet, and whether the record counts for nothing."""
        self._letters_end = 0
        consumer.assign([self.source, self._letters])

    @classmethod
    @asynccontextmanager
    async def of(cls, connection: Connection, topic: TopicSpec[Any], partition: int) -> AsyncIterator[Self]:
        """One with a consumer of its own. Raises KafkaError, and RightsError where we may not read dead letters."""
        # Asked first: a topic that we may not read looks to the consumer like one that isn't there.
        letters = connection.settings.topic_prefix + DEAD_LETTERS.name
        await rights.check(connection, rights.Needed({letters: frozenset({rights.READ})}))
        consumer = AIOKafkaConsumer(
            **connection.options,
            isolation_level=connection.isolation,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=max(FETCH, connection.settings.max_record),
        )
        try:
            await consumer.start()
            yield cls(connection, consumer, topic, partition)
        finally:
            with suppress(TimeoutError, KafkaError):
                await within(STOP_S, consumer.stop())

    async def first(self, since: int) -> tuple[int, int]:
        """Offset and time of the first record that was written at a time or later (ms since epoch); where there is
        none, the end, and that time."""
        found = (await self._consumer.offsets_for_times({self.source: since}))[self.source]
        if found is not None:
            return found.offset, found.timestamp
        return (await self._consumer.end_offsets([self.source]))[self.source], since

    async def begins(self) -> int:
        """The oldest offset that the broker has."""
        begins: int = (await self._consumer.beginning_offsets([self.source]))[self.source]
        return begins

    async def begin(self, offset: int, written: int) -> None:
        """Goes to an offset, whose record was written at a time (ms since epoch) or later."""
        self._consumer.seek(self.source, offset)
        self._next = offset
        letters = self._letters
        found = (await self._consumer.offsets_for_times({letters: max(0, written - SKEW_MS)}))[letters]
        self._consumer.seek(letters, found.offset if found else (await self._consumer.end_offsets([letters]))[letters])

    async def until(self, stop: int, written: Mapping[TopicPartition, int]) -> AsyncIterator[Reread]:
        """The records before an offset that the task has committed; written: where its outputs ended then. Raises
        TaskError where the broker has deleted some that were still to come."""
        self._letters_end = max(await self._end(self._letters), written.get(self._letters, 0))
        while self._next < stop:
            if not self._ahead:
                if await self._consumer.position(self.source) >= stop:  # nothing but gaps are left
                    self._next = stop
                    yield Reread([], stop)
                    return
                await self._fetch()
                continue
            found = []
            while self._ahead and self._ahead[0].offset < stop:
                found.append(self._ahead.popleft())
            if not found:  # what is there comes later
                self._next = stop
                yield Reread([], stop)
                return
            self._next = found[-1].offset + 1
            await self._read_letters(found[0].offset, self._next)
            yield Reread([record for record in found if not self._dead.get(record.offset)], self._next)

    async def _fetch(self) -> None:
        records = (await self._consumer.getmany(self.source, timeout_ms=200, max_records=CHUNK)).get(self.source, [])
        if records and records[0].offset > self._next and (begin := await self.begins()) > self._next:
            raise TaskError(f"{self.source.topic}/{self.source.partition} begins at {begin} by now")
        self._ahead.extend(records)

    async def _read_letters(self, first: int, stop: int) -> None:
        """Until those of all records between two offsets are known. They come in the order of slices, and in any order
        within one: as many of later records as a slice can have say that the slice of the last is through."""
        consumer, letters = self._consumer, self._letters
        self._dead = {offset: dead for offset, dead in self._dead.items() if offset >= first}
        while sum(offset >= stop for offset in self._dead) < bulk.CHUNK:
            if await consumer.position(letters) >= self._letters_end:
                return
            for record in (await consumer.getmany(letters, timeout_ms=200, max_records=CHUNK)).get(letters, []):
                headers = dict(record.headers)
                source = headers.get("source") or b""
                if not source.startswith(self._source_header):
                    continue
                offset = int(source[len(self._source_header) :])
                if offset >= first:
                    error = (headers.get("error") or b"").decode("utf-8", "replace")
                    self._dead[offset] = error not in _KEPT

    async def _end(self, tp: TopicPartition) -> int:
        end = (await self._consumer.end_offsets([tp]))[tp]
        return self._connection.end(end, self._consumer.highwater(tp))
