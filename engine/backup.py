"""An application's state into a file, and a file against the changelogs that it was made from."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition

from core.errors import BackupError
from core.settings import Settings
from engine import snapshot
from engine.archive import Archive, ArchiveWriter, Manifest, Pair, Part, PartitionState
from engine.changelog import Marker
from engine.connection import Connection
from engine.snapshot import PartitionChangelogs, Tell, changelogs
from engine.store import Meta, PartitionStore, RocksMemory

TOMBSTONES: Final = timedelta(hours=24)
"""How long a changelog tells that a key was deleted (Kafka's delete.retention.ms)."""
CLOSED: Final = 0o600
"""Who may read the file may read every session."""


class Scratch:
    """Room for one partition's state at a time, beside the workers' checkpoints, gone at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._memory = RocksMemory()
        self._made = 0

    @contextmanager
    def store(self, tables: Iterable[str]) -> Iterator[PartitionStore]:
        """An empty one."""
        self._made += 1
        store = PartitionStore(self._folder / str(self._made), tables, self._memory)
        try:
            yield store
        finally:
            store.close()
            shutil.rmtree(store.path, ignore_errors=True)


@contextmanager
def scratch(settings: Settings) -> Iterator[Scratch]:
    """Raises BackupError when DATA_DIR can't be used."""
    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".state-", dir=settings.data_dir))
    except OSError as error:
        raise BackupError(
            f"{settings.data_dir.absolute()} can't be written ({error.strerror}): HOMUNCULUS_DATA_DIR needs room for "
            "the state of a partition"
        ) from error
    try:
        yield Scratch(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# -- export --------------------------------------------------------------------------------------------------------


async def export(
    connection: Connection, tables: list[str], sources: Iterable[str], target: Path, tell: Tell
) -> Manifest:
    """Writes the state of every partition to a new file, each as of a commit of its own. Workers may go on meanwhile.

    sources: input topics, as the broker names them. Raises BackupError; then there is no file.
    """
    settings = connection.settings
    if target.exists():
        raise BackupError(f"{target} is there already: choose another name")
    count, there = await snapshot.shape(connection, tables)
    with scratch(settings) as room, _appearing(target) as part:
        writer = ArchiveWriter(part)
        try:
            state = []
            async with changelogs(connection, there, tell) as logs, _plain(connection) as reader:
                for partition in range(count):
                    with room.store(there) as store:
                        marker = await logs.of(partition).snapshot(store)
                        parts = await asyncio.to_thread(_write, writer, partition, store, there)
                    left = await _unread(reader, marker, partition, sources)
                    state.append(_state(partition, marker, left, parts))
                    records = sum(one.records for one in parts.values())
                    tell(
                        f"partition {partition} of {count}: {records:,} values at {marker.positions or 'its beginning'}"
                    )
            manifest = Manifest(
                settings.app_id,
                settings.topic_prefix,
                datetime.now(UTC).isoformat(timespec="seconds"),
                there,
                state,
            )
            await asyncio.to_thread(writer.close, manifest)
        except BaseException:
            writer.abandon()
            raise
    return manifest


def _write(writer: ArchiveWriter, partition: int, store: PartitionStore, tables: Iterable[str]) -> dict[str, Part]:
    return {table: writer.part(table, partition, store.scan(table)) for table in tables}


def _state(partition: int, marker: Marker, left: dict[str, int], parts: dict[str, Part]) -> PartitionState:
    changelog_ends = dict(marker.changelogs or {})
    return PartitionState(
        partition,
        marker.positions,
        left,
        marker.watermark,
        marker.incarnation,
        changelog_ends,
        parts,
        marker.versions,
        marker.format,
    )


async def _unread(reader: AIOKafkaConsumer, marker: Marker, partition: int, sources: Iterable[str]) -> dict[str, int]:
    known = {TopicPartition(topic, partition) for topic in {*sources, *marker.positions}}
    for tp in known:
        reader._client.add_topic(tp.topic)  # else it learns of one topic at a time, each for a pause of 100 ms
    await reader._client._maybe_wait_metadata()
    there = {tp: marker.positions.get(tp.topic, 0) for tp in known if partition in _partitions(reader, tp.topic)}
    return {tp.topic: left for tp, left in (await snapshot.unread(reader, there)).items()} if there else {}


def _partitions(reader: AIOKafkaConsumer, topic: str) -> set[int]:
    return set(reader.partitions_for_topic(topic) or ())


@asynccontextmanager
async def _plain(connection: Connection) -> AsyncIterator[AIOKafkaConsumer]:
    async with AIOKafkaConsumer(
        **connection.options, isolation_level=connection.isolation, enable_auto_commit=False
    ) as consumer:
        yield consumer


@contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """A path to write to; what stands there at the end appears under its name at once, complete and on disk."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.absolute().parent))
    except OSError as error:
        raise BackupError(f"{target} can't be written: {error.strerror}") from error
    part = folder / "part"
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.chmod(CLOSED)
        part.replace(target)
        above = os.open(target.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(above)
        finally:
            os.close(above)
    except OSError as error:
        why = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
        raise BackupError(f"{target} can't be written: {why}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# -- verify --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Compared:
    """What a file and the changelogs have in common, in keys."""

    same: int = 0
    different: int = 0
    missing: int = 0
    """In the file, and not in the changelog."""
    extra: int = 0
    """In the changelog as of the file's commit, and not in the file."""
    overwritten: int = 0
    """Compaction has removed what they were then: they have changed since."""
    untold: int = 0
    """In the file alone, which is older than a changelog's memory of deletions."""
    examples: list[str] = field(default_factory=list)
    not_compared: dict[int, str] = field(default_factory=dict)
    """Partition -> why."""

    @property
    def ok(self) -> bool:
        """Whether what could be compared is equal."""
        return not (self.different or self.missing or self.extra)

    def differs(self, what: str, table: str, partition: int, key: bytes) -> None:
        """Notes a difference; a few of them are told."""
        setattr(self, what, getattr(self, what) + 1)
        if len(self.examples) < 5:
            self.examples.append(f"{what}: {key.decode('utf-8', 'backslashreplace')[:80]!r} of {table}/{partition}")


def check(archive: Archive, tell: Tell) -> None:
    """Reads the whole file. Raises DamagedFileError."""
    for one in archive.manifest.state:
        for table in one.tables:
            for _ in archive.chunks(table, one.partition):
                pass
        tell(f"partition {one.partition} of {archive.manifest.partitions}: the file is whole")


async def compare(connection: Connection, archive: Archive, tell: Tell) -> Compared:
    """Looks for every key of the file in the changelogs, as they were when the file was made as far as that is there
    still. Raises BackupError."""
    manifest, found = archive.manifest, Compared()
    count, there = await snapshot.shape(connection, manifest.tables)
    if gone := [table for table in manifest.tables if table not in there]:
        raise BackupError(f"the broker has no changelog of {', '.join(gone)}: nothing to compare with")
    old = datetime.now(UTC) - datetime.fromisoformat(manifest.created) > TOMBSTONES
    with scratch(connection.settings) as room:
        async with changelogs(connection, there, tell) as logs:
            for one in manifest.state:
                if count != manifest.partitions:
                    found.not_compared[one.partition] = f"there are {count} partitions now"
                    continue
                with room.store(there) as then, room.store(there) as since:
                    why = await _as_of(one, logs.of(one.partition), then, since)
                    if why is not None:
                        found.not_compared[one.partition] = why
                        continue
                    for table in manifest.tables:
                        await asyncio.to_thread(_compare, archive, one.partition, table, then, since, found, old)
                tell(f"partition {one.partition} of {manifest.partitions}: compared")
    return found


async def _as_of(
    one: PartitionState, logs: PartitionChangelogs, then: PartitionStore, since: PartitionStore
) -> str | None:
    """Fills a store with what the changelogs say of the file's commit, another one with the keys written after it.
    Returns why that can't be done."""
    marker = await logs.newest()
    if marker is None:
        return None if not one.incarnation else "its changelogs are empty"
    if marker.incarnation == one.incarnation:
        ends = await logs.ends()
        if any(ends.get(table, 0) < offset for table, offset in one.changelogs.items()):
            raise BackupError(f"partition {one.partition}: the changelogs have lost records since the file was made")
        for store in (then, since):
            await asyncio.to_thread(store.begin_restore)
        await logs.read(then, {}, one.changelogs)
        await logs.read(since, one.changelogs, ends, values=False)
        for store in (then, since):
            await asyncio.to_thread(store.restored, Meta())
        return None
    if marker.positions == one.positions and (await logs.snapshot(then)).positions == one.positions:
        return None
    return "its changelogs were imported, reset or made anew since, and stand at other positions"


class _Reads(Protocol):
    def get(self, table: str, key: bytes) -> bytes | None: ...


def _compare(
    archive: Archive, partition: int, table: str, then: PartitionStore, since: _Reads, found: Compared, old: bool
) -> None:
    ours = archive.pairs(table, partition)
    for key, saved, logged in both(ours, then.scan(table)):
        if saved == logged:
            found.same += 1
        elif saved is None:
            found.differs("extra", table, partition, key)
        elif logged is not None:
            found.differs("different", table, partition, key)
        elif since.get(table, key) is not None:
            found.overwritten += 1
        elif old:
            found.untold += 1
        else:
            found.differs("missing", table, partition, key)


def both(ours: Iterator[Pair], theirs: Iterator[Pair]) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Keys of two sorted streams with the values of each, None where one has none."""
    mine, other = next(ours, None), next(theirs, None)
    while mine is not None or other is not None:
        if other is None or (mine is not None and mine[0] < other[0]):
            assert mine is not None
            yield mine[0], mine[1], None
            mine = next(ours, None)
        elif mine is None or other[0] < mine[0]:
            yield other[0], None, other[1]
            other = next(theirs, None)
        else:
            yield mine[0], mine[1], other[1]
            mine, other = next(ours, None), next(theirs, None)
