"""What a session has asked and found before: reused for the same question, and for one that is nearly the same."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from models.knowledge.canonical import canonical
from models.knowledge.query import Found, Hit, Query
from models.knowledge.record import WIRE

SIMILAR: Final = 0.90
"""Cosine from which on another question's passages are taken. They are no answer: a wrong neighbour among them costs a
place, not the truth."""
TTL_MS: Final = 15 * 60_000
BUDGET: Final = 32_768
"""Bytes of a session, about."""
_OVERHEAD: Final = 100


class Entry(msgspec.Struct, array_like=True):
    """One question of a session."""

    asked: str
    """Canonical."""
    scope: str
    """Hash of tenant, tags and count: another scope is another question."""
    embedder: str
    """Identity of the version that made the vector."""
    vector: bytes
    """(size,) of WIRE; empty without an embedder."""
    hits: list[Hit]
    version: tuple[int, ...]
    """Of the knowledge in which it was looked up."""
    at: int
    """Event time, ms since epoch."""
    uses: int = 1
    rank: float = 0.0
    gist: str = ""
    """Query.gist."""
    reranker: str = ""
    """Identity of the version that has ordered the hits; empty: the fusion has."""

    @property
    def size(self) -> int:
        """Bytes, about, as the table stores them."""
        return (
            _OVERHEAD
            + len(self.asked)
            + len(self.gist)
            + len(self.vector) * 4 // 3
            + sum(60 + len(hit.passage) for hit in self.hits)
        )


class Recalled(msgspec.Struct, array_like=True):
    """A session's questions. What goes where the budget ends is told by GDSF: uses by size, aged by what has gone
    (Cherkasova: Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency, HP Labs 1998)."""

    entries: list[Entry] = []
    clock: float = 0.0
    """Rank of the last entry that had to go."""


class Match(NamedTuple):
    """An entry that may be taken."""

    entry: Entry
    exact: bool
    """The same question; else one that is nearly the same."""


def scope_of(query: Query) -> str:
    """Where an answer may come from, as one word."""
    parts = [repr(query.tenant), repr(sorted(set(query.tags))), str(query.count)]
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def exact(recalled: Recalled, query: Query, embedder: str, now: int, reranker: str = "") -> Entry | None:
    """The entry of the very same question. now: event time, ms. reranker: who orders passages now. What is too old is
    passed over, not removed: reading never waits for tidying."""
    asked = canonical(query.text)
    return next((one for one in _those(recalled, query, embedder, now, reranker) if one.asked == asked), None)


def alike(recalled: Recalled, query: Query, embedder: str, now: int, reranker: str = "") -> Entry | None:
    """The newest entry of a question with the same gist: it takes no vector to tell that it is similar."""
    gist = query.gist()
    those = _those(recalled, query, embedder, now, reranker)
    return next((one for one in reversed(those) if gist and one.gist == gist), None)


def similar(
    recalled: Recalled, query: Query, vector: NDArray[np.float32], embedder: str, now: int, reranker: str = ""
) -> Entry | None:
    """The entry of the nearest question, where that is near enough. vector: (size,), of length 1."""
    size = len(vector) * WIRE.itemsize
    those = [one for one in _those(recalled, query, embedder, now, reranker) if len(one.vector) == size]
    if not those:
        return None
    matrix = np.frombuffer(b"".join(entry.vector for entry in those), WIRE).astype(np.float32).reshape(len(those), -1)
    cosines = matrix @ vector
    best = int(cosines.argmax())
    return those[best] if cosines[best] >= SIMILAR else None


def entry_of(
    query: Query,
    vector: NDArray[np.float32] | None,
    embedder: str,
    found: Sequence[Found],
    version: tuple[int, ...],
    now: int,
    reranker: str = "",
) -> Entry:
    """What is remembered of a question that was looked up."""
    return Entry(
        asked=canonical(query.text),
        scope=scope_of(query),
        embedder=embedder,
        vector=b"" if vector is None else vector.astype(WIRE).tobytes(),
        hits=[Hit(one.passage, one.score, one.cosine, one.bm25, one.rerank) for one in found],
        version=version,
        at=now,
        gist=query.gist(),
        reranker=reranker,
    )


def remembered(recalled: Recalled, entry: Entry, budget: int = BUDGET) -> Recalled:
    """With one more entry, in place of the one of the same question; what is too old by then goes, and what is worth
    least where the budget ends."""
    kept = [
        one
        for one in recalled.entries
        if _fresh(one, entry.at) and (one.asked, one.scope) != (entry.asked, entry.scope)
    ]
    clock = recalled.clock
    for one in (*kept, entry):
        one.rank = max(one.rank, clock + one.uses / one.size)
    kept.append(entry)
    while len(kept) > 1 and sum(one.size for one in kept) > budget:
        least = min(kept[:-1], key=lambda one: one.rank)
        clock = least.rank
        kept.remove(least)
    return Recalled(kept, clock)


def _those(recalled: Recalled, query: Query, embedder: str, now: int, reranker: str) -> list[Entry]:
    """Entries that may be taken for a question, as far as its words don't matter."""
    scope = scope_of(query)
    return [
        one
        for one in recalled.entries
        if (one.scope, one.embedder, one.reranker) == (scope, embedder, reranker) and _fresh(one, now)
    ]


def _fresh(entry: Entry, now: int) -> bool:
    return now - entry.at < TTL_MS
