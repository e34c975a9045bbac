"""RocksDB of one partition: a local checkpoint of its changelogs, one column family a table."""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from rocksdict import (
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    CompactOptions,
    DBCompressionType,
    MemtableFactory,
    Options,
    Rdict,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from core.errors import CorruptStoreError, DataFolderError, HomunculusError, TaskError

log = logging.getLogger(__name__)

_META: Final = b"meta"
_SCRUBBED: Final = b"scrubbed"
_MANIFEST: Final = 2048
"""Bytes of a manifest with which the next change begins a new one. It names the first and last key of each file that
there ever was since it was begun."""
_CHANGES: Final = 100
"""That many make one larger, by far."""
_CORRUPT: Final = "Corruption"
"""What RocksDB's text begins with when files are damaged."""
_GONE: Final = "No such file"
"""And what it says of one that isn't there."""
_DAMAGED: Final = "DAMAGED"
"""A file in the folder of a store that could not be read."""
_BLOCK_CACHE: Final = 64 << 20
_WRITE_BUFFERS: Final = 128 << 20
_BULK_BUFFER: Final = 8 << 20
"""A restore's write buffer: small ones are sorted faster, and leave less to flush at the end."""
_BULK_COMPACTION: Final = 8
"""Files of a restore that are compacted together."""
_BEHIND: Final = 16
"""Files of a restore that wait for their compaction; at 20 RocksDB slows its writers down, and us with the GIL."""
_RESTORES: Final = 3
"""Partitions that restore at a time. One keeps the thread busy; the others have their next records fetched."""


class Meta(msgspec.Struct, frozen=True):
    """What the checkpoint stands for."""

    incarnation: str = ""
    """Which life of the changelogs it belongs to: an embedded broker forgets them, our folder doesn't."""
    positions: dict[str, int] = {}
    """Source topic -> next offset."""
    changelogs: dict[str, int] = {}
    """Table -> next offset of its changelog."""
    watermark: int = -1
    """Newest event time seen less the allowed lateness, ms since epoch."""
    erased: str = ""
    """The newest erasure of a session that it knows of."""


class RocksMemory:
    """Block cache and write buffers shared by all partitions of a worker, so that their sum is bounded."""

    def __init__(self) -> None:
        self.cache = Cache(_BLOCK_CACHE)
        self.buffers = WriteBufferManager(_WRITE_BUFFERS, True)
        self.restores = asyncio.Semaphore(_RESTORES)
        """Taken by who restores much: what that needs in memory doesn't grow with the number of partitions."""

    def usage(self) -> dict[str, int]:
        """What of it is for what -> bytes, of all partitions together."""
        return {
            "block_cache": self.cache.get_usage(),
            "block_cache_pinned": self.cache.get_pinned_usage(),
            "write_buffers": self.buffers.get_usage(),
        }

    def options(self, bulk: bool = False) -> Options:
        """Options of one partition's database. bulk: for a replay, which writes much and reads nothing."""
        blocks = BlockBasedOptions()
        blocks.set_block_cache(self.cache)
        blocks.set_bloom_filter(10, False)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(blocks)
        options.set_write_buffer_manager(self.buffers)
        options.set_write_buffer_size(16 << 20)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_max_open_files(256)
        options.set_keep_log_file_num(2)
        options.set_max_manifest_file_size(_MANIFEST)
        options.set_max_background_jobs(2)
        if bulk:
            # Sorted by the flush, in RocksDB's own thread: half the price of a skip list for the one that writes.
            options.set_allow_concurrent_memtable_write(False)
            options.set_memtable_factory(MemtableFactory.vector())
            options.set_write_buffer_size(_BULK_BUFFER)
            options.set_max_write_buffer_number(4)
            options.set_level_zero_file_num_compaction_trigger(_BULK_COMPACTION)
        return options


class PartitionStore:
    """Get, write and scan, by table. Every write is atomic over tables and carries the Meta it stands for."""

    def __init__(self, path: Path, tables: Iterable[str], memory: RocksMemory) -> None:
        """Opens or creates it. Raises DataFolderError when the folder can't be used."""
        self.path = path
        self.memory = memory
        self._tables = tuple(tables)
        self._reopening = threading.Lock()
        """Reopening takes a thread's time: whoever closes meanwhile waits, or it would be open for ever."""
        self._scrubbing = self._closing = False
        self._open()

    def _open(self, bulk: bool = False) -> None:
        path, options = str(self.path), self.memory.options(bulk)
        self._bulk, self._closing = bulk, False
        try:
            if (self.path / _DAMAGED).exists():
                shutil.rmtree(self.path)
            self.path.mkdir(parents=True, exist_ok=True)
            existing = Rdict.list_cf(path) if (self.path / "CURRENT").exists() else []
            families = {name: self.memory.options(bulk) for name in existing if name != "default"}
            self._db: Rdict | None = Rdict(path, options, families)
            for table in self._tables:
                if table not in existing:
                    self._db.create_column_family(table, self.memory.options(bulk))
            raw, scrubbed = self._db.get(_META), self._db.get(_SCRUBBED)
        except Exception as error:  # rocksdict raises plain Exception with RocksDB's text
            self._diagnose(error)
            return
        # Views by table: after close() a live one would keep the LOCK, so close() drops them.
        self._views = {table: self._db.get_column_family(table) for table in self._tables}
        self._handles = {table: self._db.get_column_family_handle(table) for table in self._tables}
        self.meta = msgspec.msgpack.decode(raw, type=Meta) if raw else Meta()
        self._scrubbed = (scrubbed or b"").decode()

    def _diagnose(self, error: Exception) -> None:
        if (opened := getattr(self, "_db", None)) is not None:
            opened.close()
        self._db = None
        text = str(error)
        if _is_damage(text):
            log.error("%s is corrupt (%s): it is rebuilt from the changelogs", self.path, text)
            try:
                shutil.rmtree(self.path)
            except OSError as refused:
                raise DataFolderError(f"{self.path} is corrupt and can't be removed ({refused.strerror})") from error
            self._open()
            return
        if "lock" in text.lower():
            raise DataFolderError(
                f"{self.path} is in use by another process: give each worker its own HOMUNCULUS_DATA_DIR"
            ) from error
        raise DataFolderError(
            f"{self.path} can't be opened ({text}): check HOMUNCULUS_DATA_DIR, its owner and its space"
        ) from error

    def get(self, table: str, key: bytes) -> bytes | None:
        """The value at the last checkpoint. Raises TaskError once closed, CorruptStoreError."""
        with self._reading():
            value: bytes | None = self._view(table).get(key)
        return value

    def get_many(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values of many keys."""
        with self._reading():
            return cast("list[bytes | None]", self._view(table).get(list(keys)))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """What can't be read is noted in the folder: whoever opens it next, in this process or another, wipes it."""
        try:
            yield
        except HomunculusError:
            raise
        except Exception as error:  # rocksdict raises plain Exception with RocksDB's text
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> CorruptStoreError | DataFolderError:
        try:
            (self.path / _DAMAGED).touch()
        except OSError as refused:
            return DataFolderError(f"{self.path} can't be read ({error}) nor written ({refused.strerror})")
        return CorruptStoreError(f"{self.path} is damaged ({error}): it is rebuilt from the changelogs")

    def write(self, changes: Mapping[str, Mapping[bytes, bytes | None]], meta: Meta | None = None) -> None:
        """Committed values (None deletes) and, with the last of them, what they stand for. Raises DataFolderError.

        Values without their meta are harmless: a replay from the older one ends with the same values.
        """
        db = self._db
        if db is None:
            raise TaskError(f"{self.path} is closed")
        batch = self._batch(changes)
        if meta is not None:
            batch.put(_META, msgspec.msgpack.encode(meta))
        self._apply(db, batch)
        if meta is not None:
            self.meta = meta

    def begin_restore(self) -> None:
        """Makes itself ready for many values of a replay, and for nothing else before restored()."""
        with self._reopening:
            self._reopen(bulk=True)

    def _reopen(self, bulk: bool) -> None:
        if self._db is None:
            raise TaskError(f"{self.path} is closed")
        self._close()
        self._open(bulk)

    def restore(self, table: str, items: Mapping[bytes, bytes | None]) -> None:
        """Values from a changelog. What they stand for is not noted before restored(): a crash until then means the
        same replay again, onto the same values. After begin_restore() there is no write-ahead log (a third cheaper)."""
        db = self._db
        if db is None:
            raise TaskError(f"{self.path} is closed")
        if not self._bulk:
            self.write({table: items})
            return
        db.set_write_options(_without_log())
        try:
            self._apply(db, self._batch({table: items}))
        finally:
            db.set_write_options(WriteOptions())

    def behind(self, table: str) -> bool:
        """Whether RocksDB should be given time before more is restored: else it takes it, and stops the process."""
        number = self._view(table).property_int_value
        files, buffers = number("rocksdb.num-files-at-level0"), number("rocksdb.num-immutable-mem-table")
        return (files or 0) >= _BEHIND or (buffers or 0) >= 2

    def restored(self, meta: Meta) -> None:
        """Notes what a replay has led to, once all of it is on disk. Raises TaskError once closed."""
        with self._reopening:
            if self._bulk:
                self._flush()
                self._reopen(bulk=False)
            self.write({}, meta)

    def _flush(self) -> None:
        assert self._db is not None
        try:
            for view in (self._db, *self._views.values()):
                view.flush()
        except Exception as error:  # rocksdict raises plain Exception with RocksDB's text
            raise DataFolderError(f"{self.path} can't be written ({error}): is the disk full?") from error

    def _batch(self, changes: Mapping[str, Mapping[bytes, bytes | None]]) -> WriteBatch:
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        for table, items in changes.items():
            batch.set_default_column_family(self._handles[table])  # once: it is a fifth of each put that names it
            for key, value in items.items():
                if value is None:
                    batch.delete(key)
                else:
                    put(key, value)
        batch.set_default_column_family(None)
        return batch

    def _apply(self, db: Rdict, batch: WriteBatch) -> None:
        try:
            db.write(batch)
        except Exception as error:  # rocksdict raises plain Exception with RocksDB's text
            if _is_damage(str(error)):
                raise self._damaged(error) from error
            raise DataFolderError(f"{self.path} can't be written ({error}): is the disk full?") from error

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Table -> number and bytes of its values here, as RocksDB estimates them. Not while it restores."""
        return {
            table: (
                view.property_int_value("rocksdb.estimate-num-keys") or 0,
                view.property_int_value("rocksdb.estimate-live-data-size") or 0,
            )
            for table, view in self._views.items()
        }

    @property
    def tainted(self) -> bool:
        """Whether its files may hold bytes of a session that was erased."""
        return self._db is not None and not self._bulk and self.meta.erased not in ("", self._scrubbed)

    def scrub(self) -> None:
        """Writes every file anew, so that none of them holds what was deleted. RocksDB does so in threads of its own;
        close() ends it. Raises DataFolderError, TaskError.

        Whole tables: the ranges that are rewritten stand in RocksDB's log, and a session's key must not.
        """
        with self._reopening:
            self._scrubbing = True
            try:
                self._refuse_closed()
                erased = self.meta.erased
                self._flush()  # the write-ahead logs go with the last of them
                thorough = CompactOptions()
                thorough.set_exclusive_manual_compaction(False)
                thorough.set_bottommost_level_compaction(BottommostLevelCompaction.force())
                for table in self._tables:
                    self._view(table).compact_range(None, None, thorough)
                    self._refuse_closed()
                self._note_scrubbed(erased)
            except Exception as error:
                if self._closing and not isinstance(error, TaskError):
                    raise TaskError(f"{self.path} is closed") from None
                raise
            finally:
                self._scrubbing = False

    def _note_scrubbed(self, erased: str) -> None:
        """Until the manifest is a new one, without the files that are gone."""
        current = self.path / "CURRENT"
        before = current.read_bytes()
        for _ in range(_CHANGES):
            self._refuse_closed()
            batch = WriteBatch(raw_mode=True)
            batch.put(_SCRUBBED, erased.encode())
            assert self._db is not None
            self._apply(self._db, batch)
            self._flush()
            if current.read_bytes() != before:
                self._scrubbed = erased
                return
        raise TaskError(f"{self.path} keeps the list of its files as it was")

    def _refuse_closed(self) -> None:
        if self._closing or self._db is None:
            raise TaskError(f"{self.path} is closed")

    def scan(self, table: str, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from start on, in key order."""
        items: Any = self._view(table).items(from_key=start) if start else self._view(table).items()
        return iter(items)

    def about(self, table: str) -> int:
        """How many keys it has, by an estimate that costs nothing. Raises TaskError once closed."""
        return self._view(table).property_int_value("rocksdb.estimate-num-keys") or 0

    def wipe(self) -> None:
        """Starts over with nothing."""
        self.close()
        shutil.rmtree(self.path)
        self._open()

    def close(self) -> None:
        """Releases the folder; reading and writing raise TaskError from now on."""
        self._closing = True
        given_up = self._scrubbing
        if given_up and (db := self._db) is not None:
            db.cancel_all_background(False)
            del db  # one that lives keeps the folder's lock
        with self._reopening:
            try:
                self._close()
            except Exception:  # rocksdict raises plain Exception with RocksDB's text
                if not given_up:
                    raise
                self._db = None  # it is closed; what could not be flushed any more is in its log

    def _close(self) -> None:
        if self._db is not None:
            self._views.clear()
            self._handles.clear()
            self._db.close()
            self._db = None

    def _view(self, table: str) -> Rdict:
        try:
            return self._views[table]
        except KeyError:
            raise TaskError(f"{self.path} is closed, or has no table {table!r}") from None


def _is_damage(text: str) -> bool:
    """Whether RocksDB speaks of files that are damaged or gone."""
    return _CORRUPT in text or (_GONE in text and any(name in text for name in (".sst", ".log", "MANIFEST")))


def _without_log() -> WriteOptions:
    options = WriteOptions()
    options.disable_wal = True  # type: ignore[assignment, method-assign]  # the stub takes it for a method
    return options
