"""The file of a library: its tables in SQLite, and how it is opened."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Final

SCHEMA: Final = 2
"""Another one is built anew: all of it is on the topic."""
_TABLES: Final = """
CREATE TABLE about (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE positions (partition INTEGER PRIMARY KEY, next INTEGER NOT NULL);
CREATE TABLE documents (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, partition INTEGER NOT NULL, tenant TEXT, title TEXT, url TEXT,
    tags TEXT NOT NULL, born INTEGER NOT NULL, revision INTEGER NOT NULL, wanted TEXT NOT NULL, size INTEGER NOT NULL,
    at INTEGER NOT NULL, content TEXT, embedder TEXT, own_title TEXT, parts INTEGER NOT NULL DEFAULT 0, error TEXT);
CREATE INDEX documents_wanted ON documents (at) WHERE content IS NOT wanted;
CREATE INDEX documents_embedders ON documents (embedder);
CREATE INDEX documents_tenants ON documents (tenant);
CREATE TABLE tags (tag TEXT, document INTEGER, PRIMARY KEY (tag, document)) WITHOUT ROWID;
CREATE INDEX tags_documents ON tags (document);
CREATE TABLE passages (
    id INTEGER PRIMARY KEY, document INTEGER NOT NULL, number INTEGER NOT NULL, hash BLOB NOT NULL,
    key INTEGER NOT NULL,
    headings TEXT NOT NULL, start INTEGER NOT NULL, "end" INTEGER NOT NULL, vector BLOB, partition INTEGER NOT NULL,
    since INTEGER NOT NULL);
CREATE INDEX passages_documents ON passages (document, hash);
CREATE INDEX passages_since ON passages (partition, since);
CREATE INDEX passages_keys ON passages (key);
CREATE VIRTUAL TABLE words USING fts5 (tenant, heads, text, tokenize = "porter unicode61 remove_diacritics 2");
CREATE TABLE parts (
    document INTEGER, part INTEGER, content TEXT, embedder TEXT, value BLOB, PRIMARY KEY (document, part));
CREATE TABLE outbox (turn INTEGER PRIMARY KEY AUTOINCREMENT, key INTEGER NOT NULL UNIQUE, partition INTEGER NOT NULL);
CREATE TABLE stale (key BLOB PRIMARY KEY, partition INTEGER NOT NULL) WITHOUT ROWID;
"""


def connected(path: Path) -> sqlite3.Connection:
    """For one thread at a time, which need not be this one."""
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, cached_statements=256)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")  # a power cut loses the newest records, which the topic has
    db.execute("PRAGMA cache_size = -16000")
    return db


def created(db: sqlite3.Connection) -> sqlite3.Connection:
    """With empty tables."""
    with transaction(db):
        for statement in filter(str.strip, _TABLES.split(";")):
            db.execute(statement)
        db.executemany("INSERT INTO about VALUES (?, ?)", [("schema", SCHEMA), ("passages", 0), ("at", time.time())])
    return db


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All of it, or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def mark(tenant: str | None) -> str:
    """A tenant as one word that no text has."""
    return "t" + blake2b((tenant or "").encode("utf-8", "surrogatepass"), digest_size=12,
                         key=b"none" if tenant is None else b"some").hexdigest()  # fmt: skip
