"""The broker of a trial in memory: a list of records a partition, and what an engine writes to them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
from aiokafka import TopicPartition

from core.topics import changelog
from engine.changelog import POSITIONS, Changelog, Complete, Marker
from engine.committer import Committer
from engine.connection import Connection
from engine.outputs import Builders
from engine.producer import Member, Producer
from engine.store import Meta, PartitionStore
from engine.takeover import Takeover
from engine.testing.trial import Written

Headers = Sequence[tuple[str, bytes | None]]


class Log:
    """All topics. It outlives crashes; every append counts at once, so a transaction is one append."""

    def __init__(self) -> None:
        self._records: defaultdict[TopicPartition, list[Written]] = defaultdict(list)

    def append(
        self,
        tp: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> int:
        """timestamp: ms since epoch, by default now. Returns the offset behind the record."""
        records = self._records[tp]
        at = int(time.time() * 1e3) if timestamp is None else timestamp
        records.append(Written(len(records), at, key, value, headers))
        return len(records)

    def records(self, tp: TopicPartition, start: int = 0, size: int | None = None) -> list[Written]:
        """Records from an offset on, at most so many."""
        return self._records[tp][start : None if size is None else start + size]

    def end(self, tp: TopicPartition) -> int:
        """The offset behind the last record."""
        return len(self._records[tp])

    def marker(self, tp: TopicPartition) -> Marker:
        """The newest marker in a changelog of markers."""
        records = self._records[tp]
        return msgspec.json.decode(records[-1].value or b"", type=Marker) if records else Marker("", {}, -1)

    def newest(self, tp: TopicPartition) -> dict[bytes, bytes]:
        """What a compacted topic is about: each key's newest value."""
        values = {record.key or b"": record.value for record in self._records[tp]}
        return {key: value for key, value in values.items() if value is not None}


class LogBatch:
    """A record batch under way, as far as outboxes need one."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes | None, bytes | None, Headers]] = []
        self._builder = self
        self._relative_offset = 0

    def record_count(self) -> int:
        """How many it has."""
        return len(self.records)

    def append(self, place: int, now: int, key: bytes | None, value: bytes | None, headers: Headers) -> LogBatch:
        """It is never full."""
        self.records.append((key, value, headers))
        return self


class LogProducer(Producer):
    """Appends to a log. Nothing can go wrong between its first record and its last."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def new_builder(self) -> LogBatch:
        """An empty record batch."""
        return LogBatch()

    async def begin(
        self, member: Member, locks: Mapping[TopicPartition, int], targets: Iterable[TopicPartition]
    ) -> None:
        """Nobody else writes, so nothing is locked."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A transaction is one send."""
        yield

    async def send(self, builders: Builders) -> dict[TopicPartition, int]:
        """Returns the offset behind the last record of each."""
        return {
            target: self._log.append(target, *record)
            for target, batches in builders.items()
            for batch in batches
            for record in batch.records
        }

    async def stop(self, within_s: float = 5.0) -> None:
        """There is no connection."""


class LogCommitter(Committer):
    """Commits to a log."""

    def __init__(self, engine: Any, log: Log) -> None:
        super().__init__(engine)
        self._log = log

    @property
    def takeover(self) -> Takeover:
        """Nobody leaves anything undecided."""
        return cast(Takeover, _Decided())

    async def _started(self, transactional_id: str | None) -> Producer:
        return LogProducer(self._log)


class _Decided:
    async def decided(self, *_: Any) -> None:
        pass


class LogChangelog(Changelog):
    """Replays from a log."""

    def __init__(self, connection: Connection, partition: int, tables: list[str], log: Log) -> None:
        super().__init__(connection, partition, tables)
        self._log = log

    async def replay(self, store: PartitionStore) -> int:
        """Brings an empty store to the last commit. Returns the number of values."""
        marker = self._log.marker(self.positions)
        self._incarnation = marker.incarnation or self._incarnation
        self.versions, self.format, self.erased = dict(marker.versions), marker.format, marker.erased
        topics = {table: tp for table, tp in self._topics.items() if table != POSITIONS}
        self._ends = {table: self._log.end(tp) for table, tp in topics.items()}
        self._complete = Complete(marker.positions, marker.watermark, dict(self._ends))
        tables = {table: self._log.newest(tp) for table, tp in topics.items()}
        store.write(tables, Meta(self._incarnation, marker.positions, self._ends, marker.watermark, marker.erased))
        return sum(map(len, tables.values()))


def changelog_of(app_id: str, prefix: str, table: str, partition: int) -> TopicPartition:
    """Where a table's changes are."""
    return TopicPartition(prefix + changelog(app_id, table).name, partition)
