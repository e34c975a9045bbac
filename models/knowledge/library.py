"""The whole knowledge of a worker: documents, passages and their words in SQLite, vectors in memory beside it."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.knowledge.database import SCHEMA, connected, created, transaction
from models.knowledge.fusion import DENSE, LEXICAL
from models.knowledge.outbox import Outbox
from models.knowledge.qdrant import Told
from models.knowledge.query import Found, Hit, Query
from models.knowledge.search import Search, version_of
from models.knowledge.shelves import GRAPH, Changes, Shelves
from models.knowledge.writing import Record, Writing

__all__ = ["FILE", "FRESH_S", "Library", "Pending", "Record"]

log = logging.getLogger(__name__)

FILE: Final = "knowledge.sqlite"
FRESH_S: Final = 12 * 3600.0
"""A library that was last written longer ago is built anew: Kafka forgets tombstones after a day, so a deleted
document could stay."""


class Pending(NamedTuple):
    """A document whose passages have still to be made."""

    name: str
    partition: int
    born: int
    wanted: str
    size: int
    at: int


class Library:
    """Applies the records of `passages` in their order, and searches. One thread may apply while another one searches:
    who searches sees what one apply() has left, never half a record.

    The positions of what was applied are written in the same transaction. All of it can be made anew from the topic.
    """

    def __init__(self, folder: Path | None, clock: Callable[[], float] = time.time, *, mirrored: bool = False) -> None:
        """folder: None keeps it in memory alone. clock: seconds since epoch. mirrored: Qdrant compares the vectors:
        none is in memory then, and changes go to the outbox."""
        self._path = None if folder is None else folder / FILE
        self._clock = clock
        self._lock = threading.RLock()
        self._mirrored = mirrored
        self._shelves = Shelves()
        self.rebuilt: str | None = None
        """Why what was on disk was not taken."""
        self._write = self._opened()
        self._read = self._write if self._path is None else connected(self._path)
        self.outbox = Outbox(self._write, self._lock) if mirrored else None
        self.positions: dict[int, int] = dict(self._write.execute("SELECT partition, next FROM positions"))
        """Partition -> next offset of the topic to be applied."""
        self._stamps: dict[str | None, int] = defaultdict(int)
        self.reader = Search(self._reading, self._shelves, lambda: self.positions)

    # -- opening ------------------------------------------------------------------------------------------------------

    def _opened(self) -> sqlite3.Connection:
        path = self._path
        if path is None:
            return created(sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None))
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            try:
                db = connected(path)
                self.rebuilt = self._wrong(db)
                if self.rebuilt is None:
                    return db
                db.close()
            except (sqlite3.Error, ValueError) as error:
                self.rebuilt = f"it can't be read: {error}"
            log.warning("%s is built anew from the topic: %s", path, self.rebuilt)
        self._shelves.clear()
        for file in (
            *path.parent.glob(f"{GRAPH}*"),
            path,
            path.with_name(f"{FILE}-wal"),
            path.with_name(f"{FILE}-shm"),
        ):
            file.unlink(missing_ok=True)
        return created(connected(path))

    def _wrong(self, db: sqlite3.Connection) -> str | None:
        """What speaks against a library on disk, if anything does; its vectors are on their shelves then."""
        about = dict(db.execute("SELECT name, value FROM about"))
        if about.get("schema") != SCHEMA:
            return "another release has written it"
        if not 0 <= self._clock() - float(about["at"]) < FRESH_S:
            return f"it was last written more than {FRESH_S / 3600:g} h ago, and deletions may have been missed"
        (problem,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if problem != "ok":
            return f"it is damaged: {problem}"
        counts = db.execute("SELECT (SELECT count(*) FROM passages), (SELECT count(*) FROM words)").fetchone()
        if counts != (about["passages"], about["passages"]):
            return f"it has {counts[0]} passages and {counts[1]} texts, and should have {about['passages']}"
        assert self._path is not None
        if self._mirrored:
            for file in self._path.parent.glob(f"{GRAPH}*"):
                file.unlink()  # nobody would take what is deleted out of it
        else:
            self._shelves.fill(db)
            self._shelves.load(self._path.parent, dict(db.execute("SELECT partition, next FROM positions")))
        return None

    def close(self) -> None:
        """Nothing is asked of it any more."""
        self.save(1)
        with self._lock:
            for db in {self._write, self._read}:
                db.close()

    def forget(self) -> None:
        """Everything goes: the topic begins anew."""
        with self._lock:
            for db in {self._write, self._read}:
                db.close()
            if self._path is not None:
                self._path.unlink(missing_ok=True)
            self._shelves.clear()
            self._write = self._opened()
            self._read = self._write if self._path is None else connected(self._path)
            self.outbox = Outbox(self._write, self._lock) if self._mirrored else None
            self.positions = {}

    # -- applying -----------------------------------------------------------------------------------------------------

    def apply(self, records: Iterable[Record]) -> None:
        """Takes records in, as one step. Records that were applied before do nothing; what can't be read is left out,
        and said."""
        with self._lock:
            changes, writing = Changes(), Writing(self._write)
            positions = dict(self.positions)
            with transaction(self._write):
                for record in records:
                    if record.offset >= positions.get(record.partition, 0):
                        writing.take(record, changes)
                        positions[record.partition] = record.offset + 1
                self._note(positions, changes)
            if not self._mirrored:
                self._shelves.rearrange(changes)  # once the disk has it
            self.positions = positions
            for tenant in changes.tenants:
                self._stamps[tenant] += 1

    def _note(self, positions: Mapping[int, int], changes: Changes) -> None:
        db = self._write
        db.executemany("INSERT OR REPLACE INTO positions VALUES (?, ?)", positions.items())
        db.execute("UPDATE about SET value = value + ? WHERE name = 'passages'", (changes.count,))
        db.execute("UPDATE about SET value = ? WHERE name = 'at'", (self._clock(),))

    def index(self, count: int) -> int:
        """Adds so many passages to the graphs of very large tenants. Returns how many they lack then; those are
        compared one by one until then."""
        return self._shelves.index(count)

    def save(self, least: int) -> None:
        """Writes graphs that have so many changes: a start without them compares exactly until they are made again."""
        if self._path is not None and not self._mirrored:
            self._shelves.save(self._path.parent, self.positions, least)

    # -- what there is to do ------------------------------------------------------------------------------------------

    def pending(
        self, partitions: Iterable[int], embedder: str, count: int, *, newest: bool, most: int
    ) -> list[Pending]:
        """Documents of these partitions whose passages are not those of their newest record, or not of this embedder.

        newest: those first, else the oldest. most: characters of such a document.
        """
        owned = sorted(partitions)
        where = f"partition IN ({','.join('?' * len(owned))}) AND size <= ?"
        order = "ORDER BY at DESC, revision DESC LIMIT ?" if newest else "ORDER BY at, revision LIMIT ?"
        columns = "SELECT name, partition, born, wanted, size, at FROM documents"
        with self._lock:
            rows = self._write.execute(
                f"{columns} WHERE content IS NOT wanted AND {where} {order}", (*owned, most, count)
            ).fetchall()
            rows = (
                rows
                or self._write.execute(
                    f"{columns} WHERE (embedder < ? OR embedder > ?) AND error IS NULL AND {where} {order}",
                    (embedder, embedder, *owned, most, count),
                ).fetchall()
            )
        return [Pending(*row) for row in rows]

    def stale(self, partitions: Iterable[int], count: int) -> list[tuple[int, bytes]]:
        """Keys on the topic, of these partitions, that nobody needs: whoever owns them deletes them."""
        owned = sorted(partitions)
        marks = ",".join("?" * len(owned))
        asked = f"SELECT partition, key FROM stale WHERE partition IN ({marks}) LIMIT ?"
        with self._lock:
            return self._write.execute(asked, (*owned, count)).fetchall()

    def vectors(self, name: str, embedder: str) -> dict[bytes, bytes]:
        """Hash -> vector of what a document has by this embedder: it needn't be computed again."""
        with self._lock:
            rows = self._write.execute(
                "SELECT p.hash, p.vector FROM passages p JOIN documents d ON d.id = p.document "
                "WHERE d.name = ? AND d.embedder = ? AND p.vector IS NOT NULL",
                (name, embedder),
            )
            return dict(rows.fetchall())

    def status(self, embedder: str | None) -> dict[str, Any]:
        """Counts for people."""
        with self._lock:
            documents, pending, failed = self._write.execute(
                "SELECT count(*), total(content IS NOT wanted OR (embedder IS NOT ? AND error IS NULL)), "
                "total(error IS NOT NULL) FROM documents",
                (embedder or "",),
            ).fetchone()
            (passages,) = self._write.execute("SELECT value FROM about WHERE name = 'passages'").fetchone()
            vectors = len(self._shelves)
            if self._mirrored:
                counted = "SELECT count(*) FROM documents d JOIN passages p ON p.document = d.id WHERE d.embedder != ''"
                (vectors,) = self._write.execute(counted).fetchone()
            return {
                "documents": documents,
                "passages": passages,
                "pending": int(pending),
                "failed": int(failed),
                "vectors": vectors,
                "vector_bytes": self._shelves.bytes,
                "waiting": 0 if self.outbox is None else self.outbox.waiting,
                "positions": {str(partition): at for partition, at in sorted(self.positions.items())},
            }

    def stamp(self, tenant: str | None) -> int:
        """Counts the changes of a tenant's knowledge since this process has it: equal stamps, equal answers."""
        return self._stamps[tenant]

    @property
    def version(self) -> tuple[int, ...]:
        """How far each partition of the topic is applied, by number: the version of all knowledge."""
        return version_of(self.positions)

    # -- searching ----------------------------------------------------------------------------------------------------

    def search(
        self,
        query: Query,
        vector: NDArray[np.float32] | None = None,
        embedder: str = "",
        dense: float = DENSE,
        lexical: float = LEXICAL,
        told: Sequence[Told] | None = None,
    ) -> list[Found]:
        """As Search.find."""
        return self.reader.find(query, vector, embedder, dense, lexical, told)

    def again(
        self, query: Query, hits: Sequence[Hit], vector: NDArray[np.float32] | None, version: Sequence[int]
    ) -> list[Found] | None:
        """As Search.again."""
        return self.reader.again(query, hits, vector, version)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if self._path is None:
            with self._lock:
                yield self._write
        else:
            yield self._read
