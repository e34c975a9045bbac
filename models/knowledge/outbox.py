"""Which passages' points may differ from the library: what Qdrant has still to be told, for as long as it is away."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

from models.knowledge.database import mark, transaction
from models.knowledge.qdrant import Point
from models.knowledge.record import WIRE

_TRIGGERS: Final = """
CREATE TEMP TRIGGER added AFTER INSERT ON main.passages
    BEGIN INSERT OR REPLACE INTO outbox (key, partition) VALUES (new.key, new.partition); END|
CREATE TEMP TRIGGER embedded AFTER UPDATE OF vector ON main.passages WHEN old.vector IS NOT new.vector
    BEGIN INSERT OR REPLACE INTO outbox (key, partition) VALUES (new.key, new.partition); END|
CREATE TEMP TRIGGER removed AFTER DELETE ON main.passages
    BEGIN INSERT OR REPLACE INTO outbox (key, partition) VALUES (old.key, old.partition); END|
CREATE TEMP TRIGGER moved AFTER UPDATE OF tenant, tags, embedder ON main.documents
    WHEN (old.tenant, old.tags, old.embedder) IS NOT (new.tenant, new.tags, new.embedder)
    BEGIN
        INSERT OR REPLACE INTO outbox (key, partition) SELECT key, partition FROM passages WHERE document = new.id;
    END
"""
"""Of a connection, not of the file: a worker without Qdrant has none."""
_POINTS: Final = (
    "SELECT p.key, d.name, p.hash, d.tenant, d.tags, d.embedder, p.partition, p.vector FROM passages p "
    "JOIN documents d ON d.id = p.document WHERE d.embedder != '' AND length(p.vector) = ? AND "
)


class Due(NamedTuple):
    """What is to be done in the collection."""

    turns: list[int]
    """What done() takes."""
    puts: list[Point]
    deletes: list[int]


class Outbox:
    """Notes every change of a passage in the transaction that makes it. What is to be done is what the library says
    when it is asked: to do it twice, or in another order, leads to the same."""

    def __init__(self, db: sqlite3.Connection, lock: threading.RLock) -> None:
        """db: where the library is written; lock: whose that is."""
        self._db, self._lock = db, lock
        for trigger in _TRIGGERS.split("|"):
            db.execute(trigger)

    @property
    def waiting(self) -> int:
        """Changes that Qdrant hasn't been told of."""
        with self._lock:
            (count,) = self._db.execute("SELECT count(*) FROM outbox").fetchone()
        return int(count)

    def due(self, owned: Iterable[int], size: int, count: int) -> Due:
        """The oldest changes of these partitions; those of others are their owners', and go.

        size: components of the collection's vectors. Passages that have others, or none, have no point.
        """
        partitions = sorted(owned)
        those = f"IN ({','.join('?' * len(partitions))})"
        puts, deletes = list[Point](), list[int]()
        with self._lock:
            self._db.execute(f"DELETE FROM outbox WHERE partition NOT {those}", partitions)
            rows = self._db.execute("SELECT turn, key FROM outbox ORDER BY turn LIMIT ?", (count,)).fetchall()
            for key in {key for _, key in rows}:
                row = self._db.execute(f"{_POINTS} p.key = ? LIMIT 1", (size * WIRE.itemsize, key)).fetchone()
                if row is None:
                    deletes.append(key)
                else:
                    puts.append(_point(row))
        return Due([turn for turn, _ in rows], puts, deletes)

    def done(self, due: Due) -> None:
        """Qdrant has been told. What has changed meanwhile has another turn."""
        marks = ",".join("?" * len(due.turns))
        with self._lock:
            self._db.execute(f"DELETE FROM outbox WHERE turn IN ({marks})", due.turns)

    def compare(self, partition: int, size: int, there: Mapping[int, str]) -> int:
        """Notes every passage of a partition whose point is missing, is another one, or shouldn't be. Returns how many.

        there: versions of the points, by their keys.
        """
        with self._lock, transaction(self._db):
            rows = self._db.execute(f"{_POINTS} p.partition = ?", (size * WIRE.itemsize, partition))
            wanted = {point.key: point.version for point in map(_point, rows)}
            differ = {key for key, _ in wanted.items() ^ there.items()}
            noted = [(key, partition) for key in differ]
            self._db.executemany("INSERT OR REPLACE INTO outbox (key, partition) VALUES (?, ?)", noted)
        return len(differ)


def _point(row: tuple[int, str, bytes, str | None, str, str, int, bytes]) -> Point:
    key, name, hashed, tenant, tags, embedder, partition, vector = row
    hash_ = blake2b(digest_size=8)
    for part in (mark(tenant), tags, embedder, str(partition)):
        hash_.update(part.encode("utf-8", "surrogatepass") + b"\0")
    hash_.update(vector)
    return Point(
        key, f"{name}#{hashed.hex()}", tenant, tuple(json.loads(tags)), embedder, partition, hash_.hexdigest(), vector
    )
