"""Questions to a library: by meaning and by words, fused; and whether an earlier answer is still one."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from models.knowledge.database import mark
from models.knowledge.fusion import DENSE, LEXICAL, fused
from models.knowledge.qdrant import Told
from models.knowledge.query import Found, Hit, Query
from models.knowledge.record import WIRE
from models.knowledge.shelf import Near
from models.knowledge.shelves import Shelves

NEWCOMERS: Final = 256
"""Passages that are compared with an earlier question at most: more of them are a reason to search again."""
MARGIN: Final = 0.05
ROWS: Final = 5_000
"""Passages that are scored by words: with what more of them have, a word says too little to be worth its time."""
CANDIDATES: Final = 4
"""Times as many are taken from the ranking by words as are wanted, so that equal ones are told apart by their keys."""
DEPTH: Final = 50
"""Passages of each ranking that are fused."""
_HEADINGS_WEIGHT: Final = 2.0
"""By how much a word in title or headings counts more than one in the text."""


class Worded(NamedTuple):
    """A passage that has words of a question."""

    id: int
    bm25: float
    """Larger is better."""
    key: int
    """What orders equally good ones, on every worker alike."""


class Search:
    """The reading side of a library."""

    def __init__(
        self,
        reading: Callable[[], AbstractContextManager[sqlite3.Connection]],
        shelves: Shelves,
        positions: Callable[[], dict[int, int]],
    ) -> None:
        """positions: partition -> next offset, as of now."""
        self._reading = reading
        self._shelves = shelves
        self._positions = positions

    def find(
        self,
        query: Query,
        vector: NDArray[np.float32] | None = None,
        embedder: str = "",
        dense: float = DENSE,
        lexical: float = LEXICAL,
        told: Sequence[Told] | None = None,
    ) -> list[Found]:
        """The passages that answer best, the best first: by meaning where a vector is given, and by words.

        vector: (size,), of length 1, by that embedder. dense, lexical: weights of the two rankings. told: the ranking
        by meaning, where Qdrant has made it.
        """
        near: list[Near] = []
        if told is not None:
            near = self._known(query, told, embedder)
        elif vector is not None and dense:
            near = self.nearest(query, vector, embedder)
        worded = self.worded(query) if lexical else []
        scores = fused((dense, [one.id for one in near]), (lexical, [one.id for one in worded]))
        keys = {one.id: one.key for one in near} | {one.id: one.key for one in worded}
        best = sorted(scores.items(), key=lambda one: (-one[1], keys[one[0]]))[: query.count]
        cosines, weights = {one.id: one.cosine for one in near}, {one.id: one.bm25 for one in worded}
        return self._found(query, [(one, score, cosines.get(one), weights.get(one)) for one, score in best])

    def nearest(self, query: Query, vector: NDArray[np.float32], embedder: str, count: int = DEPTH) -> list[Near]:
        """By meaning alone: ids and cosines."""
        return self._shelves.nearest(query.tenant, embedder, vector, count, self._tagged(query))

    def _known(self, query: Query, told: Sequence[Told], embedder: str) -> list[Near]:
        """What of it the library has too: what was deleted, or is another tenant's by now, isn't found there either."""
        tagged = self._tagged(query)
        allowed = None if tagged is None else set(tagged.tolist())
        near = []
        with self._reading() as db:
            for one in told:
                row = db.execute(
                    "SELECT p.id, p.document FROM passages p JOIN documents d ON d.id = p.document "
                    "WHERE p.key = ? AND d.tenant IS ? AND d.embedder = ? LIMIT 1",
                    (one.key, query.tenant, embedder),
                ).fetchone()
                if row is not None and (allowed is None or row[1] in allowed):
                    near.append(Near(row[0], one.cosine, one.key))
        return near

    def worded(self, query: Query, count: int = DEPTH) -> list[Worded]:
        """By words alone, the best first."""
        tags = "".join(" AND EXISTS (SELECT 1 FROM tags t WHERE t.document = d.id AND t.tag = ?)" for _ in query.tags)
        with self._reading() as db:
            words = self._telling(db, query)
            if not words:
                return []
            any_of = " OR ".join(f'"{word}"' for word in words)
            match = f"{{heads text}} : ({any_of})"
            if self._shared(db, query.tenant):
                match = f'tenant : "{mark(query.tenant)}" AND {match}'
            ranked = "SELECT rowid AS id, bm25(words, 0.0, ?, 1.0) AS rank FROM words WHERE words MATCH ?"
            if not query.tags:
                # Who looks at the other tables for the best alone saves two thirds of the time.
                ranked += f" ORDER BY rank LIMIT {CANDIDATES * count}"
            rows = db.execute(
                f"SELECT w.id, round(w.rank, 6) AS rank, p.key FROM ({ranked}) w JOIN passages p ON p.id = w.id "
                f"JOIN documents d ON d.id = p.document WHERE d.tenant IS ?{tags} ORDER BY 2, 3 LIMIT ?",
                (_HEADINGS_WEIGHT, match, query.tenant, *query.tags, count),
            ).fetchall()
        return [Worded(one, -rank, key) for one, rank, key in rows]

    def _shared(self, db: sqlite3.Connection, tenant: str | None) -> bool:
        """Whether there are other tenants: else nobody's passages have to be left out, which is a third of the time."""
        # By ranges of the index: there is none for IS NOT.
        others = "tenant NOT NULL" if tenant is None else "tenant IS NULL OR tenant < ?1 OR tenant > ?1"
        asked = f"SELECT EXISTS (SELECT 1 FROM documents WHERE {others})"
        (found,) = db.execute(asked, () if tenant is None else (tenant,)).fetchone()
        return bool(found)

    def _telling(self, db: sqlite3.Connection, query: Query) -> list[str]:
        """The words of a question that are looked up: the rarest, as long as not too many passages have them."""
        words = query.words()
        counted = sorted(
            (db.execute("SELECT count(*) FROM words WHERE words MATCH ?", (f'"{word}"',)).fetchone()[0], at)
            for at, word in enumerate(words)
        )
        room, kept = ROWS, list[int]()
        for rows, at in counted:
            if kept and rows > room:
                break
            kept.append(at)
            room -= rows
        return [words[at] for at in sorted(kept)]

    def again(
        self, query: Query, hits: Sequence[Hit], vector: NDArray[np.float32] | None, version: Sequence[int]
    ) -> list[Found] | None:
        """The passages that an earlier search found, as they are now; None where it might find others by now.

        hits: what it found, in its order. vector: the question's. version: of the knowledge at that time. Passages that
        have come since are no reason while they are farther from the question than all that it found, by MARGIN: what
        words alone would bring in is missed until the entry is too old.
        """
        if version_of(self._positions()) != tuple(version) and self._newcomers_matter(query, hits, vector, version):
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
        if len(found) != len(hits):
            return None
        return [replace(one, rerank=hit.rerank) for one, hit in zip(found, hits, strict=True)]

    def there(self, tenant: str | None, passages: Iterable[str]) -> set[str]:
        """Those of the passages that a tenant still has."""
        found = set()
        with self._reading() as db:
            for passage in passages:
                name, _, hashed = passage.rpartition("#")
                row = db.execute(
                    "SELECT 1 FROM passages p JOIN documents d ON d.id = p.document "
                    "WHERE d.name = ? AND p.hash = ? AND d.tenant IS ? LIMIT 1",
                    (name, bytes.fromhex(hashed), tenant),
                ).fetchone()
                if row is not None:
                    found.add(passage)
        return found

    def behind(self, tenant: str | None, embedder: str) -> bool:
        """Whether a tenant has documents whose newest text isn't found yet, or not by meaning."""
        with self._reading() as db:
            asked = (
                "SELECT EXISTS (SELECT 1 FROM documents WHERE content IS NOT wanted AND tenant IS ?) OR EXISTS "
                "(SELECT 1 FROM documents WHERE (embedder < ? OR embedder > ?) AND error IS NULL AND tenant IS ?)"
            )
            return bool(db.execute(asked, (tenant, embedder, embedder, tenant)).fetchone()[0])

    def _newcomers_matter(
        self, query: Query, hits: Sequence[Hit], vector: NDArray[np.float32] | None, version: Sequence[int]
    ) -> bool:
        floor = min((hit.cosine for hit in hits if hit.cosine is not None), default=None)
        newest = self._positions()
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


def version_of(positions: dict[int, int]) -> tuple[int, ...]:
    """How far each partition of the topic is applied, by number."""
    return tuple(positions.get(partition, 0) for partition in range(max(positions, default=-1) + 1))
