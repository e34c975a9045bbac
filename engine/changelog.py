"""The changelogs of one partition: what a commit writes to them, and how a new owner replays them."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import chain, repeat
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from core.topics import changelog
from engine.bulk import IN_BATCHES
from engine.connection import Connection
from engine.deadline import within
from engine.outputs import Builders, fill
from engine.producer import Producer
from engine.record import Batch
from engine.schema import FORMAT
from engine.store import Meta, PartitionStore
from engine.table import Items

log = logging.getLogger(__name__)

POSITIONS: Final = "positions"
"""The changelog of markers."""
_MARKER: Final = b"marker"
FETCH: Final = 2 << 20
"""Bytes of an answer, and so of what a replay has in its hands at a time."""
BEHIND_S: Final = 30.0
"""Seconds that RocksDB may need to catch up; then it is written to all the same, and says what is wrong."""
STOP_S: Final = 5.0
LONG: Final = 50_000
"""Records of a replay that is worth reopening the store for."""


class Complete(msgspec.Struct, frozen=True):
    """A commit that has ended."""

    positions: dict[str, int]
    watermark: int
    changelogs: dict[str, int]
    """Table -> offset behind its last record."""


class Marker(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last record of every commit: the state is complete up to here, and stands for these positions."""

    incarnation: str
    positions: dict[str, int]
    watermark: int
    changelogs: dict[str, int] | None = None
    """Table -> offset behind its last record; what lies beyond belongs to no commit. None: it came with a transaction,
    and all that is committed belongs to it."""
    versions: dict[str, int] = {}
    """Table -> the newest version of its values in this partition; 1 where it isn't named."""
    format: int = FORMAT
    """Of values' headers."""
    before: Complete | None = None
    """The commit before this one, where they are transactions: a reader beside the owner (engine/snapshot.py) can't see
    otherwise which of the records that it finds came with which marker."""
    erased: str = ""
    """The newest erasure of a session: stores that don't know it yet have to be scrubbed (engine/scrubbing.py)."""


class Changelog:
    """Reads and writes the changelog partitions of one task."""

    def __init__(self, connection: Connection, partition: int, tables: list[str]) -> None:
        app_id, prefix = connection.settings.app_id, connection.settings.topic_prefix
        self._connection = connection
        self._transactional = connection.transactional
        self._topics = {t: TopicPartition(prefix + changelog(app_id, t).name, partition) for t in [*tables, POSITIONS]}
        self._tables = {tp: t for t, tp in self._topics.items()}
        self._incarnation = uuid.uuid4().hex
        self._ends: dict[str, int] = {}
        self._foreign: dict[str, int] = {}
        """As _ends, of tables that only another release has: they are left as they are."""
        self.versions: dict[str, int] = {}
        """Table -> the newest version of its values, another release's tables too."""
        self.format = FORMAT
        self.erased = ""
        """The newest erasure of a session, from the commit on that has its tombstones."""
        self._complete: Complete | None = None
        self.left = 0
        """Records that a replay under way has still to read, about."""
        self.orphans: dict[str, set[bytes]] = {}
        """Table -> keys that a commit without an end has written: their committed values are written again."""

    def targets(self, tables: Iterable[str]) -> list[TopicPartition]:
        """The partitions that a commit of these tables writes to: each one costs a marker."""
        return [self._topics[table] for table in (*tables, POSITIONS)]

    @property
    def positions(self) -> TopicPartition:
        """The partition of markers."""
        return self._topics[POSITIONS]

    def records(self, producer: Producer, changes: Mapping[str, Items]) -> Builders:
        """One record a changed key."""
        return {self._topics[table]: _batches(producer, items) for table, items in changes.items() if items}

    def marker(self, producer: Producer, positions: dict[str, int], watermark: int) -> Builders:
        """The last record of a commit. Without transactions it is sent when the others are there, and noted: it never
        speaks of records that aren't."""
        ends = None if self._transactional else self._ends | self._foreign
        before = self._complete if self._transactional else None
        marker = Marker(self._incarnation, positions, watermark, ends, self.versions, self.format, before, self.erased)
        return {self.positions: _batches(producer, [(_MARKER, msgspec.json.encode(marker))])}

    def note(self, ends: Mapping[TopicPartition, int]) -> None:
        """Where the broker has put a commit's records; those of other tasks may be among them."""
        self._ends.update({t: ends[tp] for t, tp in self._topics.items() if tp in ends and t != POSITIONS})

    def meta(self, positions: dict[str, int], watermark: int) -> Meta:
        """What a checkpoint of all that is noted stands for: a commit has ended."""
        self._complete = Complete(positions, watermark, dict(self._ends))
        return Meta(self._incarnation, positions, dict(self._ends), watermark, self.erased)

    async def replay(self, store: PartitionStore) -> int:
        """Brings the store to the newest commit: Meta says where that is. Returns the number of records read.

        The caller has fenced the former owner, so that nothing is added meanwhile.
        """
        async with changelog_reader(self._connection, max(FETCH, self._connection.settings.max_record)) as reader:
            return await self.catch_up(reader, store)

    async def catch_up(self, consumer: AIOKafkaConsumer, store: PartitionStore, rest: float = 0.0) -> int:
        """As replay(), with a reader that may serve others too; rest: seconds of pause for each second of work."""
        consumer.assign(list(self._tables))
        consumer.pause(*self._tables)
        marker = await self.newest_marker(consumer)
        if marker is None:
            marker = Marker("", {}, -1, {})  # no commit has ended, so nothing belongs to one
        self._incarnation = marker.incarnation or self._incarnation
        self._foreign = {t: end for t, end in (marker.changelogs or {}).items() if t not in self._topics}
        self.versions, self.format, self.erased = dict(marker.versions), marker.format, marker.erased
        if store.meta.incarnation not in ("", marker.incarnation):
            log.warning("%s belongs to changelogs that are gone: it is rebuilt from those that are there", store.path)
            store.wipe()
        ends = await consumer.end_offsets(list(self._tables))
        if any(store.meta.changelogs.get(t, 0) > ends[tp] for tp, t in self._tables.items()):
            log.warning("%s is ahead of its changelogs: the broker has lost records; it is rebuilt", store.path)
            store.wipe()
        elif any(at > marker.positions.get(topic, 0) for topic, at in store.meta.positions.items()):
            # A commit that the broker confirmed as it stopped, without markers; the abort of the next transaction,
            # which had begun by then, covers it. Offsets don't show it: that mark lies behind what was written.
            log.warning("%s is ahead of the newest commit: the broker has undone one; it is rebuilt", store.path)
            store.wipe()
        left = sum(ends[tp] - store.meta.changelogs.get(t, 0) for tp, t in self._tables.items() if t != POSITIONS)
        self.left, read = left, 0
        changelogs = dict(store.meta.changelogs)
        async with AsyncExitStack() as turn:
            if left > LONG:
                await turn.enter_async_context(store.memory.restores)
                await asyncio.to_thread(store.begin_restore)
            for table, tp in self._topics.items():
                if table == POSITIONS:
                    continue
                count, end = await self._replay_table(consumer, store, table, tp, marker, rest)
                changelogs[table] = end
                read += count
        meta = Meta(marker.incarnation, marker.positions, changelogs, marker.watermark, marker.erased)
        if meta != store.meta:
            await asyncio.to_thread(store.restored, meta)
        self.left = 0
        self._ends = changelogs
        self._complete = Complete(marker.positions, marker.watermark, dict(changelogs))
        return read

    async def _replay_table(
        self,
        consumer: AIOKafkaConsumer,
        store: PartitionStore,
        table: str,
        tp: TopicPartition,
        marker: Marker,
        rest: float,
    ) -> tuple[int, int]:
        start = store.meta.changelogs.get(table, 0)
        # As the marker was written, not as we would: the guarantee may have been another one then.
        complete = sys.maxsize if marker.changelogs is None else marker.changelogs.get(table, 0)
        orphans: set[bytes] = set()
        count, at = 0, start
        said = time.monotonic()
        async for batches in fetches(self._connection, consumer, tp, start):
            began = time.monotonic()
            items: dict[bytes, bytes | None] = {}
            for batch in batches:
                whole = batch.next_offset <= complete
                for record in batch:
                    if whole or record.offset < complete:
                        items[record.key] = record.value  # type: ignore[index]  # ours, so they have keys
                        count += 1
                    else:
                        orphans.add(record.key)  # type: ignore[arg-type]
            store.restore(table, items)
            self.left, at = max(0, self.left + at - batches[-1].next_offset), batches[-1].next_offset
            if time.monotonic() - said > 5:
                log.info("%s: %d records replayed", tp.topic, count)
                said = time.monotonic()
            await asyncio.sleep(rest * (time.monotonic() - began))
            await until_room(store, table)
        if orphans:
            self.orphans[table] = orphans
        return count, (await consumer.position(tp)) if marker.changelogs is None else max(complete, start)

    async def newest_marker(self, consumer: AIOKafkaConsumer) -> Marker | None:
        """The last one that this consumer sees; it is assigned the partition of markers."""
        tp = self._topics[POSITIONS]
        first = (await consumer.beginning_offsets([tp]))[tp]
        start = end = (await consumer.end_offsets([tp]))[tp]
        back = 100
        while start > first or back == 100:
            # Backwards in growing steps: the newest marker is nearly always among the last records.
            start = max(first, end - back)
            back *= 10
            newest: bytes | None = None
            async for batches in fetches(self._connection, consumer, tp, start):
                for record in chain.from_iterable(batches):
                    newest = record.value or newest
            if newest is not None:
                return msgspec.json.decode(newest, type=Marker)
        return None


def _batches(producer: Producer, items: Items) -> list[Any]:
    builders: list[Any] = []
    keys, values = zip(*items, strict=True)
    fill(builders, producer.new_builder, keys, values, repeat([]))
    return builders


@asynccontextmanager
async def changelog_reader(connection: Connection, fetch: int) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer for replays; fetch: bytes of an answer, about."""
    consumer = AIOKafkaConsumer(
        **connection.options,
        isolation_level=connection.isolation,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        key_deserializer=IN_BATCHES,
        max_partition_fetch_bytes=fetch,
        fetch_max_wait_ms=50,
    )
    try:
        await consumer.start()
        yield consumer
    finally:
        with suppress(TimeoutError, KafkaError):
            await within(STOP_S, consumer.stop())


async def until_room(store: PartitionStore, table: str) -> None:
    """Waits on the event loop while RocksDB is behind."""
    until = time.monotonic() + BEHIND_S
    while store.behind(table) and time.monotonic() < until:
        await asyncio.sleep(0.01)


async def fetches(
    connection: Connection, consumer: AIOKafkaConsumer, tp: TopicPartition, start: int, stop: int | None = None
) -> AsyncIterator[list[Batch]]:
    """Every batch from the one that holds start to the one before stop, in order, an answer at a time. Without a stop:
    to the end of this moment. The last one may reach beyond it."""
    first = (await consumer.beginning_offsets([tp]))[tp]
    end = (await consumer.end_offsets([tp]))[tp] if stop is None else stop
    consumer.seek(tp, max(start, first))
    consumer.resume(tp)
    try:
        while (await consumer.position(tp)) < (connection.end(end, consumer.highwater(tp)) if stop is None else stop):
            if batches := (await consumer.getmany(tp, timeout_ms=200)).get(tp):
                yield batches
    finally:
        consumer.pause(tp)
