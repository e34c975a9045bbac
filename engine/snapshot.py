"""The state of a partition as of one commit, read beside its owner: what backups are made of and compared with.

Changelogs grow while they are read, and none of them says by itself which of its records came with which marker. Where
nothing is under way, all that is there belongs to the newest marker. Else each marker says where the changelogs ended
at the commit before (Marker.before), so the state of that one is known exactly, whatever the load.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import chain
from typing import Final, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition

from core.errors import BackupError
from core.topics import changelog
from engine.admin import TopicAdmin
from engine.changelog import FETCH, POSITIONS, Changelog, Complete, Marker, changelog_reader, fetches, until_room
from engine.connection import Connection
from engine.producer import TRANSACTION_S
from engine.store import Meta, PartitionStore

PATIENCE_S: Final = TRANSACTION_S + 15.0
"""Seconds that a partition may take to be at a commit: a dead worker's transaction may have to time out."""
SILENT_S: Final = 60.0
"""Seconds without a record after which a broker is given up: a worker waits for ever, an operator doesn't."""
LOOK_S: Final = 0.02
TELL_EVERY: Final = 100_000

T = TypeVar("T")

Tell = Callable[[str], None]
"""Gets a line about how far the work is."""
Offsets = Mapping[str, int]
"""Table -> offset of its changelog."""


class Changelogs:
    """Reads the changelogs of one partition after the other."""

    def __init__(
        self, connection: Connection, tables: list[str], stable: AIOKafkaConsumer, raw: AIOKafkaConsumer, tell: Tell
    ) -> None:
        """stable: reads what is decided; raw: sees what isn't."""
        self._connection = connection
        self._tables = tables
        self._stable = stable
        self._raw = raw
        self._tell = tell

    def of(self, partition: int) -> PartitionChangelogs:
        """Those of a partition; those of the one before are of no more use."""
        return PartitionChangelogs(self, partition)


class PartitionChangelogs:
    """The changelogs of one partition."""

    def __init__(self, all_of_them: Changelogs, partition: int) -> None:
        self._connection, self._stable, self._raw = all_of_them._connection, all_of_them._stable, all_of_them._raw
        self._tell = all_of_them._tell
        self._partition = partition
        self._log = Changelog(self._connection, partition, all_of_them._tables)
        self._topics = {table: self._log.targets([table])[0] for table in all_of_them._tables}
        every = [*self._topics.values(), self._log.positions]
        for consumer in (self._stable, self._raw):
            consumer.assign(every)
            consumer.pause(*every)

    async def newest(self) -> Marker | None:
        """The marker of the newest commit; None where there has never been one."""
        return await self._log.newest_marker(self._stable)

    async def ends(self) -> dict[str, int]:
        """Where each changelog ends, as far as it is decided."""
        found = await self._stable.end_offsets(list(self._topics.values()))
        return {table: found[tp] for table, tp in self._topics.items()}

    async def undecided(self) -> list[str]:
        """Topics in which somebody's transaction is open."""
        every = [*self._topics.values(), self._log.positions]
        decided, written = await self._stable.end_offsets(every), await self._raw.end_offsets(every)
        return [tp.topic for tp in every if decided[tp] < written[tp]]

    async def read(self, store: PartitionStore, starts: Offsets, stops: Offsets, values: bool = True) -> dict[str, int]:
        """Brings what stands between two places into a store that is restoring. values: False keeps keys alone.
        Returns the offset behind the last record of each table: behind it may be marks of commits."""
        reached = dict(starts)
        count = told = 0
        for table, tp in self._topics.items():
            start, stop = starts.get(table, 0), stops.get(table, 0)
            if start >= stop:
                continue
            async for batches in patiently(fetches(self._connection, self._stable, tp, start, stop), tp):
                items = {}
                for record in chain.from_iterable(batches):
                    if start <= (offset := record.offset) < stop:
                        items[record.key] = record.value if values else b""
                        reached[table] = offset + 1
                count += len(items)
                store.restore(table, items)  # type: ignore[arg-type]  # ours, so they have keys
                if count - told >= TELL_EVERY:
                    told = count
                    self._tell(f"partition {self._partition}: {count:,} records read, of {tp.topic} now")
                await asyncio.sleep(0)
                await until_room(store, table)
        return reached

    async def snapshot(self, store: PartitionStore) -> Marker:
        """Brings an empty store to a commit, and returns its marker, which says with `changelogs` how far that is.

        The place is chosen when most has been read already: what compaction takes away meanwhile is read again as
        what took its place. Raises BackupError.
        """
        first = await self.newest()
        if first is None:
            return Marker("", {}, -1, {})
        await asyncio.to_thread(store.begin_restore)
        reached = await self.read(store, {}, await self.ends() if first.changelogs is None else first.changelogs)
        cut = await self._cut(first.incarnation, reached)
        assert cut.changelogs is not None
        await self.read(store, reached, cut.changelogs)
        await asyncio.to_thread(store.restored, Meta())
        return cut

    async def _cut(self, incarnation: str, reached: Offsets) -> Marker:
        """A commit at which every changelog has come at least this far."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found, complete = await self._complete()
            if found.incarnation != incarnation:
                raise BackupError("the state was replaced while it was read: run the command again")
            for one in complete:
                if all(one.changelogs.get(table, 0) >= offset for table, offset in reached.items()):
                    ends = dict(one.changelogs)
                    return Marker(incarnation, one.positions, one.watermark, ends, found.versions, found.format)
            if time.monotonic() > deadline:
                raise BackupError(
                    f"partition {self._partition} doesn't come to the end of a commit: a transaction may be hanging "
                    f"in {self._log.positions.topic} (kafka-transactions.sh find-hanging shows whose)"
                )
            await asyncio.sleep(LOOK_S)

    async def _complete(self) -> tuple[Marker, list[Complete]]:
        """The newest marker, and the commits that are known to be whole, the newest first."""
        positions = self._log.positions
        end = (await self._stable.end_offsets([positions]))[positions]
        marker = await self.newest()
        if marker is None:
            raise BackupError(f"{positions.topic} was emptied while it was read: run the command again")
        if marker.changelogs is not None:
            return marker, [Complete(marker.positions, marker.watermark, marker.changelogs)]
        decided = await self.ends()
        written = await self._raw.end_offsets([*self._topics.values(), positions])
        found = [] if marker.before is None else [marker.before]
        # In this order: a commit that shows in a table had written its marker before.
        if written[positions] == end and all(written[tp] == decided[t] for t, tp in self._topics.items()):
            found.insert(0, Complete(marker.positions, marker.watermark, decided))
        return marker, found


async def patiently(answers: AsyncIterator[T], tp: TopicPartition) -> AsyncIterator[T]:
    """What somebody reads, as long as it keeps coming. Raises BackupError."""
    while True:
        try:
            async with asyncio.timeout(SILENT_S):
                answer = await anext(answers)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise BackupError(
                f"no record of {tp.topic}/{tp.partition} came for {SILENT_S:.0f} s: is the broker away?"
            ) from None
        yield answer


@asynccontextmanager
async def changelogs(connection: Connection, tables: list[str], tell: Tell) -> AsyncIterator[Changelogs]:
    """Readers of an application's changelogs."""
    async with AsyncExitStack() as held:
        stable = await held.enter_async_context(
            changelog_reader(connection, max(FETCH, connection.settings.max_record))
        )
        raw = await held.enter_async_context(
            AIOKafkaConsumer(**connection.options, isolation_level="read_uncommitted", enable_auto_commit=False)
        )
        yield Changelogs(connection, tables, stable, raw, tell)


async def shape(connection: Connection, tables: list[str]) -> tuple[int, list[str]]:
    """How many partitions the application has on the broker, and which of these tables have a changelog there.

    Raises BackupError when it isn't there, or its changelogs differ.
    """
    settings = connection.settings
    names = {t: settings.topic_prefix + changelog(settings.app_id, t).name for t in (*tables, POSITIONS)}
    async with TopicAdmin(connection.bootstrap, connection.security) as admin:
        shapes = await admin.shapes()
    if names[POSITIONS] not in shapes:
        raise BackupError(
            f"the broker has no topic {names[POSITIONS]}: no worker of application {settings.app_id!r} has ever run "
            "there (HOMUNCULUS_APP_ID and HOMUNCULUS_TOPIC_PREFIX name it)"
        )
    counts = {name: shapes[name].partitions for name in names.values() if name in shapes}
    if len(set(counts.values())) > 1:
        raise BackupError(f"the changelogs differ in their number of partitions: {counts}")
    return counts[names[POSITIONS]], [table for table in tables if names[table] in shapes]


async def unread(consumer: AIOKafkaConsumer, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Offsets from each position to the end of its partition, 0 where none of them holds a record: a producer's commit
    marks count as offsets too. consumer: without a group."""
    partitions = list(positions)
    consumer.assign(partitions)
    consumer.pause(*partitions)
    begins, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
    left = {}
    for tp, position in positions.items():
        start = max(position, begins[tp])
        left[tp] = max(0, ends[tp] - start)
        if start >= ends[tp]:
            continue
        consumer.seek(tp, start)
        consumer.resume(tp)
        async for found in patiently(_any(consumer, tp, ends[tp]), tp):
            left[tp] = left[tp] if found else 0
        consumer.pause(tp)
    return left


async def _any(consumer: AIOKafkaConsumer, tp: TopicPartition, end: int) -> AsyncIterator[bool]:
    """Whether a partition has a record before its end."""
    while await consumer.position(tp) < end:
        if (await consumer.getmany(tp, timeout_ms=200, max_records=1)).get(tp):
            yield True
            return
    yield False
