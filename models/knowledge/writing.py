"""Records of `passages` on their way into a library's file."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from models.knowledge.database import mark
from models.knowledge.record import Announced, Content, Key, announced, content
from models.knowledge.shelves import Changes

log = logging.getLogger(__name__)


class Record(NamedTuple):
    """One of the topic `passages`."""

    partition: int
    offset: int
    key: bytes
    value: bytes | None


class Writing:
    """The writing side of a library: within a transaction of its caller."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._write = db

    def take(self, record: Record, changes: Changes) -> None:
        """One record; what can't be read is left out, and said. changes: gets what it means for the shelves."""
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

    def _announce(self, name: str, record: Record, told: Announced | None, changes: Changes) -> None:
        db, partition = self._write, record.partition
        row = db.execute("SELECT id, born, parts, tenant FROM documents WHERE name = ?", (name,)).fetchone()
        if row is not None and (told is None or told.born != row[1]):
            self._clear(row[0], changes)
            changes.tenants.add(row[3])
            begun = {part for (part,) in db.execute("SELECT part FROM parts WHERE document = ?", (row[0],))}
            for part in begun.union(range(row[2])):
                self._stale(Key(name, part), partition)
            db.execute("DELETE FROM tags WHERE document = ?", (row[0],))
            db.execute("DELETE FROM parts WHERE document = ?", (row[0],))
            db.execute("DELETE FROM documents WHERE id = ?", (row[0],))
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

    def _move(self, document: int, old: str | None, new: str | None, changes: Changes) -> None:
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

    def _made(self, key: Key, record: Record, made: Content | None, changes: Changes) -> None:
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

    def _install(self, document: int, parts: Sequence[Content], record: Record, changes: Changes) -> None:
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

    def _clear(self, document: int, changes: Changes) -> None:
        tenant, embedder = self._write.execute(
            "SELECT tenant, embedder FROM documents WHERE id = ?", (document,)
        ).fetchone()
        ids = [one for (one,) in self._write.execute("SELECT id FROM passages WHERE document = ?", (document,))]
        self._delete(ids, tenant, embedder or "", changes)

    def _delete(self, ids: Sequence[int], tenant: str | None, embedder: str, changes: Changes) -> None:
        for one in ids:
            self._write.execute("DELETE FROM words WHERE rowid = ?", (one,))
            self._write.execute("DELETE FROM passages WHERE id = ?", (one,))
            changes.remove(tenant, embedder, one)
        changes.count -= len(ids)

    def _insert_words(self, passage: int, tenant: str | None, heads: str, text: str) -> None:
        self._write.execute(
            "INSERT INTO words (rowid, tenant, heads, text) VALUES (?, ?, ?, ?)", (passage, mark(tenant), heads, text)
        )

    def _stale(self, key: Key, partition: int) -> None:
        self._write.execute("INSERT OR REPLACE INTO stale VALUES (?, ?)", (key.encode(), partition))


def _order(name: str, hashed: bytes) -> int:
    """A number of a passage that is the same in every library."""
    return int.from_bytes(blake2b(name.encode() + hashed, digest_size=8).digest(), "big") >> 1
