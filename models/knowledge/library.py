"""The whole knowledge of a worker: documents, passages and their words in SQLite, vectors in memory beside it."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from models.knowledge.fusion import DENSE, LEXICAL, fused
from models.knowledge.query import Found, Hit, Query
from models.knowledge.record import WIRE, Announced, Content, Key, announced, content
from models.knowledge.shelf import Near, Shelf

log = logging.getLogger(__name__)

FILE: Final = "knowledge.sqlite"
SCHEMA: Final = 1
"""Another one is built anew: all of it is on the topic."""
FRESH_S: Final = 12 * 3600.0
"""A library that was last written longer ago is built anew: Kafka forgets tombstones after a day, so a deleted
document could stay."""
NEWCOMERS: Final = 256
"""Passages that are compared with an earlier question at most: more of them are a reason to search again."""
MARGIN: Final = 0.05
DEPTH: Final = 50
"""Passages of each ranking that are fused."""
_HEADINGS_WEIGHT: Final = 2.0
"""By how much a word in title or headings counts more than one in the text."""

_TABLES: Final = """
CREATE TABLE about (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE positions (partition INTEGER PRIMARY KEY, next INTEGER NOT NULL);
CREATE TABLE documents (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, partition INTEGER NOT NULL, tenant TEXT, title TEXT, url TEXT,
    tags TEXT NOT NULL, born INTEGER NOT NULL, revision INTEGER NOT NULL, wanted TEXT NOT NULL, size INTEGER NOT NULL,
    at INTEGER NOT NULL, content TEXT, embedder TEXT, own_title TEXT, parts INTEGER NOT NULL DEFAULT 0, error TEXT);
CREATE INDEX documents_wanted ON documents (at) WHERE content IS NOT wanted;
CREATE INDEX documents_embedders ON documents (embedder);
CREATE TABLE tags (tag TEXT, document INTEGER, PRIMARY KEY (tag, document)) WITHOUT ROWID;
CREATE INDEX tags_documents ON tags (document);
CREATE TABLE passages (
    id INTEGER PRIMARY KEY, document INTEGER NOT NULL, number INTEGER NOT NULL, hash BLOB NOT NULL,
    key INTEGER NOT NULL,
    headings TEXT NOT NULL, start INTEGER NOT NULL, "end" INTEGER NOT NULL, vector BLOB, partition INTEGER NOT NULL,
    since INTEGER NOT NULL);
CREATE INDEX passages_documents ON passages (document, hash);
CREATE INDEX passages_since ON passages (partition, since);
CREATE VIRTUAL TABLE words USING fts5 (tenant, heads, text, tokenize = "porter unicode61 remove_diacritics 2");
CREATE TABLE parts (
    document INTEGER, part INTEGER, content TEXT, embedder TEXT, value BLOB, PRIMARY KEY (document, part));
CREATE TABLE stale (key BLOB PRIMARY KEY, partition INTEGER NOT NULL) WITHOUT ROWID;
"""


class Record(NamedTuple):
    """One of the topic `passages`."""

    partition: int
    offset: int
    key: bytes
    value: bytes | None


class Pending(NamedTuple):
    """A document whose passages have still to be made."""

    name: str
    partition: int
    born: int
    wanted: str
    size: int
    at: int


class Worded(NamedTuple):
    """A passage that has words of a question."""

    id: int
    bm25: float
    """Larger is better."""
    key: int
    """What orders equally good ones, on every worker alike."""


class Library:
    """Applies the records of `passages` in their order, and searches. One thread may apply while another one searches:
    who searches sees what one apply() has left, never half a record.

    The positions of what was applied are written in the same transaction. All of it can be made anew from the topic.
    """

    def __init__(self, folder: Path | None, clock: Callable[[], float] = time.time) -> None:
        """folder: None keeps it in memory alone. clock: seconds since epoch."""
        self._path = None if folder is None else folder / FILE
        self._clock = clock
        self._lock = threading.RLock()
        self._shelves: dict[tuple[str | None, str], Shelf] = {}
        self.rebuilt: str | None = None
        """Why what was on disk was not taken."""
        self._write = self._opened()
        self._read = self._write if self._path is None else _connected(self._path)
        self.positions: dict[int, int] = dict(self._write.execute("SELECT partition, next FROM positions"))
        """Partition -> next offset of the topic to be applied."""
        self._stamps: dict[str | None, int] = defaultdict(int)

    # -- opening ------------------------------------------------------------------------------------------------------

    def _opened(self) -> sqlite3.Connection:
        path = self._path
        if path is None:
            return _created(sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None))
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            try:
                db = _connected(path)
                self.rebuilt = self._wrong(db)
                if self.rebuilt is None:
                    return db
                db.close()
            except (sqlite3.Error, ValueError) as error:
                self.rebuilt = f"it can't be read: {error}"
            log.warning("%s is built anew from the topic: %s", path, self.rebuilt)
        self._shelves.clear()
        for file in (path, path.with_name(f"{FILE}-wal"), path.with_name(f"{FILE}-shm")):
            file.unlink(missing_ok=True)
        return _created(_connected(path))

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
        self._fill(db)
        return None

    def _fill(self, db: sqlite3.Connection) -> None:
        """Raises ValueError for a vector that has another size than the others of its embedder."""
        asked = "SELECT DISTINCT d.tenant, d.embedder FROM documents d WHERE d.embedder != ''"
        for tenant, embedder in db.execute(asked).fetchall():
            rows = db.execute(
                "SELECT p.id, p.key, p.document, p.vector FROM passages p JOIN documents d ON d.id = p.document "
                "WHERE d.tenant IS ? AND d.embedder = ? AND p.vector IS NOT NULL ORDER BY p.id",
                (tenant, embedder),
            )
            while chunk := rows.fetchmany(10_000):
                ids, keys, documents, raw = zip(*chunk, strict=True)
                vectors = np.frombuffer(b"".join(raw), WIRE).reshape(len(chunk), -1)
                shelf = self._shelf(tenant, embedder, vectors.shape[1])
                shelf.fill(*(np.array(column, np.int64) for column in (ids, keys, documents)), vectors)

    def close(self) -> None:
        """Nothing is asked of it any more."""
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
            self._read = self._write if self._path is None else _connected(self._path)
            self.positions = {}

    # -- applying -----------------------------------------------------------------------------------------------------

    def apply(self, records: Iterable[Record]) -> None:
        """Takes records in, as one step. Records that were applied before do nothing; what can't be read is left out,
        and said."""
        with self._lock:
            changes = _Changes()
            positions = dict(self.positions)
            with _transaction(self._write):
                for record in records:
                    if record.offset >= positions.get(record.partition, 0):
                        self._take(record, changes)
                        positions[record.partition] = record.offset + 1
                self._note(positions, changes)
            self._rearrange(changes)  # once the disk has it
            self.positions = positions
            for tenant in changes.tenants:
                self._stamps[tenant] += 1

    def _take(self, record: Record, changes: _Changes) -> None:
        try:
            key = Key.decode(record.key)
            if key.part is None:
                told = None if record.value is None else announced(record.value)
                self._announce(key.document, record, told, changes)
            else:
                made = None if record.value is None else content(record.value)
                self._made(key, record, made, changes)
        except (ValueError, msgspec.MsgspecError) as error:
            log.error("passages/%d/%d is none of ours, and left out: %s", record.partition, record.offset, error)

    def _announce(self, name: str, record: Record, told: Announced | None, changes: _Changes) -> None:
        db, partition = self._write, record.partition
        row = db.execute("SELECT id, born, parts, tenant FROM documents WHERE name = ?", (name,)).fetchone()
        if row is not None and (told is None or told.born != row[1]):
            self._clear(row[0], changes)
            changes.tenants.add(row[3])
            db.execute("DELETE FROM tags WHERE document = ?", (row[0],))
            db.execute("DELETE FROM parts WHERE document = ?", (row[0],))
            db.execute("DELETE FROM documents WHERE id = ?", (row[0],))
            for part in range(row[2]):
                self._stale(Key(name, part), partition)
            row = None
        if told is None:
            return
        values = (partition, told.tenant, told.title, told.url, json.dumps(told.tags), told.born, told.revision,
                  told.content, told.size, told.at)  # fmt: skip
        if row is None:
            inserted = db.execute(
                "INSERT INTO documents (name, partition, tenant, title, url, tags, born, revision, wanted, size, at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (name, *values),
            )
            document = inserted.lastrowid
        else:
            document = row[0]
            db.execute(
                "UPDATE documents SET partition = ?, tenant = ?, title = ?, url = ?, tags = ?, born = ?, revision = ?, "
                "wanted = ?, size = ?, at = ? WHERE id = ?",
                (*values, document),
            )
            db.execute("DELETE FROM tags WHERE document = ?", (document,))
            changes.tenants |= {row[3], told.tenant}
            if row[3] != told.tenant:
                self._move(document, row[3], told.tenant, changes)
                db.execute("UPDATE passages SET since = ? WHERE document = ?", (record.offset, document))
        db.executemany("INSERT INTO tags VALUES (?, ?)", [(tag, document) for tag in set(told.tags)])

    def _move(self, document: int, old: str | None, new: str | None, changes: _Changes) -> None:
        """To another tenant, words and vectors too."""
        db = self._write
        rows = db.execute(
            "SELECT p.id, p.key, p.vector, w.heads, w.text FROM passages p JOIN words w ON w.rowid = p.id "
            "WHERE document = ?",
            (document,),
        ).fetchall()
        (embedder,) = db.execute("SELECT embedder FROM documents WHERE id = ?", (document,)).fetchone()
        for one, place, vector, heads, text in rows:
            db.execute("DELETE FROM words WHERE rowid = ?", (one,))
            self._insert_words(one, new, heads, text)
            changes.remove(old, embedder, one)
            if vector is not None:
                changes.put(new, embedder, document, one, place, vector)

    def _made(self, key: Key, record: Record, made: Content | None, changes: _Changes) -> None:
        db = self._write
        row = db.execute("SELECT id, born, parts FROM documents WHERE name = ?", (key.document,)).fetchone()
        if made is None:
            db.execute("DELETE FROM stale WHERE key = ?", (record.key,))
            if row is not None and key.part is not None and key.part < row[2]:
                db.execute("UPDATE documents SET content = NULL WHERE id = ?", (row[0],))  # it has to be made again
            return
        if row is None or row[1] != made.born:
            self._stale(key, record.partition)
            return
        made.matrix()  # raises ValueError before anything has changed
        db.execute("DELETE FROM stale WHERE key = ?", (record.key,))
        if made.parts == 1:
            self._install(row[0], [made], record, changes)
            return
        db.execute("DELETE FROM parts WHERE document = ? AND NOT (content = ? AND embedder = ?)",
                   (row[0], made.content, made.embedder))  # fmt: skip
        db.execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?)",
                   (row[0], made.part, made.content, made.embedder, record.value))  # fmt: skip
        values = db.execute("SELECT value FROM parts WHERE document = ? ORDER BY part", (row[0],)).fetchall()
        if len(values) == made.parts:
            self._install(row[0], [content(value) for (value,) in values], record, changes)

    def _install(self, document: int, parts: Sequence[Content], record: Record, changes: _Changes) -> None:
        """What was made of a document takes the place of what there was: passages that are the same stay."""
        db, made = self._write, parts[0]
        name, tenant, title, before, had = db.execute(
            "SELECT name, tenant, title, embedder, parts FROM documents WHERE id = ?", (document,)
        ).fetchone()
        title = title or made.title
        rows = db.execute("SELECT hash, id FROM passages WHERE document = ?", (document,)).fetchall()
        left: dict[bytes, list[int]] = defaultdict(list)
        for hashed, one in rows:
            left[hashed].append(one)
        number = 0
        for part in parts:
            matrix = part.matrix()
            for at, passage in enumerate(part.passages):
                vector = None if matrix is None else matrix[at].tobytes()
                hashed, headings = passage.hash(title), json.dumps(passage.headings)
                order = _order(name, hashed)
                place = (number, headings, passage.start, passage.end, vector)
                if left[hashed]:
                    one = left[hashed].pop()
                    db.execute(
                        'UPDATE passages SET number = ?, headings = ?, start = ?, "end" = ?, vector = ? WHERE id = ?',
                        (*place, one),
                    )
                else:
                    inserted = db.execute(
                        'INSERT INTO passages (document, hash, number, headings, start, "end", vector, partition, '
                        "since, key) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        (document, hashed, *place, record.partition, record.offset, order),
                    )
                    one = inserted.lastrowid or 0
                    self._insert_words(one, tenant, " ".join((title or "", *passage.headings)), passage.text)
                    changes.count += 1
                if before and before != made.embedder:
                    changes.remove(tenant, before, one)
                if vector is not None:
                    changes.put(tenant, made.embedder, document, one, order, vector)
                number += 1
        self._delete([one for ones in left.values() for one in ones], tenant, before or "", changes)
        for part_number in range(made.parts, had):
            self._stale(Key(name, part_number), record.partition)
        db.execute("DELETE FROM parts WHERE document = ?", (document,))
        db.execute(
            "UPDATE documents SET content = ?, embedder = ?, own_title = ?, parts = ?, error = ? WHERE id = ?",
            (made.content, made.embedder, made.title, made.parts, made.error, document),
        )
        changes.tenants.add(tenant)

    def _clear(self, document: int, changes: _Changes) -> None:
        tenant, embedder = self._write.execute(
            "SELECT tenant, embedder FROM documents WHERE id = ?", (document,)
        ).fetchone()
        ids = [one for (one,) in self._write.execute("SELECT id FROM passages WHERE document = ?", (document,))]
        self._delete(ids, tenant, embedder or "", changes)

    def _delete(self, ids: Sequence[int], tenant: str | None, embedder: str, changes: _Changes) -> None:
        for one in ids:
            self._write.execute("DELETE FROM words WHERE rowid = ?", (one,))
            self._write.execute("DELETE FROM passages WHERE id = ?", (one,))
            changes.remove(tenant, embedder, one)
        changes.count -= len(ids)

    def _insert_words(self, passage: int, tenant: str | None, heads: str, text: str) -> None:
        self._write.execute(
            "INSERT INTO words (rowid, tenant, heads, text) VALUES (?, ?, ?, ?)", (passage, _mark(tenant), heads, text)
        )

    def _stale(self, key: Key, partition: int) -> None:
        self._write.execute("INSERT OR REPLACE INTO stale VALUES (?, ?)", (key.encode(), partition))

    def _note(self, positions: Mapping[int, int], changes: _Changes) -> None:
        db = self._write
        db.executemany("INSERT OR REPLACE INTO positions VALUES (?, ?)", positions.items())
        db.execute("UPDATE about SET value = value + ? WHERE name = 'passages'", (changes.count,))
        db.execute("UPDATE about SET value = ? WHERE name = 'at'", (self._clock(),))

    def _rearrange(self, changes: _Changes) -> None:
        for (tenant, embedder), ids in changes.removed.items():
            if (shelf := self._shelves.get((tenant, embedder))) is not None:
                shelf.remove(ids)
                if not len(shelf):
                    del self._shelves[tenant, embedder]
        for (tenant, embedder), puts in changes.added.items():
            for document, one, key, raw in puts:
                vector = np.frombuffer(raw, WIRE)
                self._shelf(tenant, embedder, len(vector)).put(document, [one], [key], vector[None])

    def _shelf(self, tenant: str | None, embedder: str, size: int) -> Shelf:
        shelf = self._shelves.get((tenant, embedder))
        if shelf is None:
            shelf = self._shelves[tenant, embedder] = Shelf(size)
        if shelf.size != size:
            raise ValueError(f"a vector has {size} components, others of its embedder {shelf.size}")
        return shelf

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
            return {
                "documents": documents,
                "passages": passages,
                "pending": int(pending),
                "failed": int(failed),
                "vectors": sum(map(len, self._shelves.values())),
                "vector_bytes": sum(shelf.bytes for shelf in self._shelves.values()),
                "positions": {str(partition): at for partition, at in sorted(self.positions.items())},
            }

    def stamp(self, tenant: str | None) -> int:
        """Counts the changes of a tenant's knowledge since this process has it: equal stamps, equal answers."""
        return self._stamps[tenant]

    @property
    def version(self) -> tuple[int, ...]:
        """How far each partition of the topic is applied, by number: the version of all knowledge."""
        positions = self.positions
        return tuple(positions.get(partition, 0) for partition in range(max(positions, default=-1) + 1))

    # -- searching ----------------------------------------------------------------------------------------------------

    def search(
        self,
        query: Query,
        vector: NDArray[np.float32] | None = None,
        embedder: str = "",
        dense: float = DENSE,
        lexical: float = LEXICAL,
    ) -> list[Found]:
        """The passages that answer best, the best first: by meaning where a vector is given, and by words.

        vector: (size,), of length 1, by that embedder. dense, lexical: weights of the two rankings.
        """
        near = self.nearest(query, vector, embedder) if vector is not None and dense else []
        worded = self.worded(query) if lexical else []
        scores = fused((dense, [one.id for one in near]), (lexical, [one.id for one in worded]))
        keys = {one.id: one.key for one in (*near, *worded)}
        best = sorted(scores.items(), key=lambda one: (-one[1], keys[one[0]]))[: query.count]
        cosines, weights = {one.id: one.cosine for one in near}, {one.id: one.bm25 for one in worded}
        return self._found(query, [(one, score, cosines.get(one), weights.get(one)) for one, score in best])

    def nearest(self, query: Query, vector: NDArray[np.float32], embedder: str, count: int = DEPTH) -> list[Near]:
        """By meaning alone: ids and cosines."""
        documents = self._tagged(query)
        with self._lock:
            shelf = self._shelves.get((query.tenant, embedder))
            if shelf is None or shelf.size != len(vector):
                return []
            return shelf.nearest(vector, count, documents)

    def worded(self, query: Query, count: int = DEPTH) -> list[Worded]:
        """By words alone, the best first."""
        if (match := query.match()) is None:
            return []
        tags = "".join(" AND EXISTS (SELECT 1 FROM tags t WHERE t.document = d.id AND t.tag = ?)" for _ in query.tags)
        with self._reading() as db:
            rows = db.execute(
                "SELECT w.rowid, round(bm25(words, 0.0, ?, 1.0), 6) AS rank, p.key "
                "FROM words w JOIN passages p ON p.id = w.rowid "
                f"JOIN documents d ON d.id = p.document WHERE words MATCH ? AND d.tenant IS ?{tags} "
                "ORDER BY rank, p.key LIMIT ?",
                (
                    _HEADINGS_WEIGHT,
                    f'tenant : "{_mark(query.tenant)}" AND {{heads text}} : ({match})',
                    query.tenant,
                    *query.tags,
                    count,
                ),
            ).fetchall()
        return [Worded(one, -rank, key) for one, rank, key in rows]

    def again(
        self, query: Query, hits: Sequence[Hit], vector: NDArray[np.float32] | None, version: Sequence[int]
    ) -> list[Found] | None:
        """The passages that an earlier search found, as they are now; None where it might find others by now.

        hits: what it found, in its order. vector: the question's. version: of the knowledge at that time. Passages that
        have come since are no reason while they are farther from the question than all that it found, by MARGIN: what
        words alone would bring in is missed until the entry is too old.
        """
        if self.version != tuple(version) and self._newcomers_matter(query, hits, vector, version):
            return None
        wanted = {hit.passage: hit for hit in hits}
        names = [tuple(passage.rpartition("#")[::2]) for passage in wanted]
        if not names:
            return []
        with self._reading() as db:
            ids = {}
            for name, hashed in names:
                row = db.execute(
                    "SELECT p.id FROM passages p JOIN documents d ON d.id = p.document "
                    "WHERE d.name = ? AND p.hash = ? AND d.tenant IS ? LIMIT 1",
                    (name, bytes.fromhex(hashed), query.tenant),
                ).fetchone()
                if row is None:
                    return None
                ids[f"{name}#{hashed}"] = row[0]
        ranked = [(ids[hit.passage], hit.score, hit.cosine, hit.bm25) for hit in hits]
        found = self._found(query, ranked)
        return found if len(found) == len(hits) else None

    def _newcomers_matter(
        self, query: Query, hits: Sequence[Hit], vector: NDArray[np.float32] | None, version: Sequence[int]
    ) -> bool:
        floor = min((hit.cosine for hit in hits if hit.cosine is not None), default=None)
        newest = self.positions
        if query.tags or any(at < (version[p] if p < len(version) else 0) for p, at in newest.items()):
            return True  # tags may have changed without a passage; a topic that was begun anew has another history
        since = [(p, version[p] if p < len(version) else 0) for p in newest]
        with self._reading() as db:
            raw = [
                vector_
                for partition, offset in since
                for (vector_,) in db.execute(
                    "SELECT p.vector FROM passages p JOIN documents d ON d.id = p.document "
                    "WHERE p.partition = ? AND p.since >= ? AND d.tenant IS ? LIMIT ?",
                    (partition, offset, query.tenant, NEWCOMERS + 1),
                )
            ]
        if not raw:
            return False
        if floor is None or vector is None or len(hits) < query.count or len(raw) > NEWCOMERS or None in raw:
            return True
        if any(len(one) != len(vector) * WIRE.itemsize for one in raw):
            return True
        rows = np.frombuffer(b"".join(raw), WIRE).astype(np.float32).reshape(len(raw), -1)
        return bool((rows @ vector).max() > floor - MARGIN)

    def _tagged(self, query: Query) -> NDArray[np.int64] | None:
        if not query.tags:
            return None
        wanted = sorted(set(query.tags))
        marks = ",".join("?" * len(wanted))
        asked = f"SELECT document FROM tags WHERE tag IN ({marks}) GROUP BY document HAVING count(*) = ?"
        with self._reading() as db:
            return np.array([one for (one,) in db.execute(asked, (*wanted, len(wanted)))], np.int64)

    def _found(self, query: Query, ranked: Sequence[tuple[int, float, float | None, float | None]]) -> list[Found]:
        marks = ",".join("?" * len(ranked))
        with self._reading() as db:
            rows = db.execute(
                'SELECT p.id, d.name, coalesce(d.title, d.own_title), d.url, p.headings, w.text, p.start, p."end", '
                "p.hash FROM passages p JOIN documents d ON d.id = p.document JOIN words w ON w.rowid = p.id "
                f"WHERE d.tenant IS ? AND p.id IN ({marks})",
                (query.tenant, *(one for one, *_ in ranked)),
            ).fetchall()
        there = {row[0]: row[1:] for row in rows}
        found = []
        for one, score, cosine, bm25 in ranked:
            if one not in there:
                continue  # gone meanwhile
            name, title, url, headings, text, start, end, hashed = there[one]
            found.append(
                Found(
                    passage=f"{name}#{hashed.hex()}",
                    document=name,
                    title=title,
                    url=url,
                    headings=tuple(json.loads(headings)),
                    text=text,
                    start=start,
                    end=end,
                    score=score,
                    cosine=cosine,
                    bm25=bm25,
                )
            )
        return found

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if self._path is None:
            with self._lock:
                yield self._write
        else:
            yield self._read


class _Changes:
    """What a step does to the shelves, once the disk has it."""

    def __init__(self) -> None:
        self.count = 0
        self.tenants: set[str | None] = set()
        self.removed: dict[tuple[str | None, str], set[int]] = defaultdict(set)
        self.added: dict[tuple[str | None, str], list[tuple[int, int, int, bytes]]] = defaultdict(list)

    def put(self, tenant: str | None, embedder: str, document: int, passage: int, key: int, vector: bytes) -> None:
        self.added[tenant, embedder].append((document, passage, key, vector))

    def remove(self, tenant: str | None, embedder: str | None, passage: int) -> None:
        place = (tenant, embedder or "")
        self.removed[place].add(passage)
        if place in self.added:
            self.added[place] = [put for put in self.added[place] if put[1] != passage]


def _order(name: str, hashed: bytes) -> int:
    """A number of a passage that is the same in every library."""
    return int.from_bytes(blake2b(name.encode() + hashed, digest_size=8).digest(), "big") >> 1


def _mark(tenant: str | None) -> str:
    """A tenant as one word that no text has."""
    return "t" + blake2b((tenant or "").encode("utf-8", "surrogatepass"), digest_size=12,
                         key=b"none" if tenant is None else b"some").hexdigest()  # fmt: skip


def _connected(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, cached_statements=256)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")  # a power cut loses the newest records, which the topic has
    db.execute("PRAGMA cache_size = -16000")
    return db


def _created(db: sqlite3.Connection) -> sqlite3.Connection:
    with _transaction(db):
        for statement in filter(str.strip, _TABLES.split(";")):
            db.execute(statement)
        db.executemany("INSERT INTO about VALUES (?, ?)", [("schema", SCHEMA), ("passages", 0), ("at", time.time())])
    return db


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
