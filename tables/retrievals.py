"""What each session has found before: a question that comes again costs no embedding and no search."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final, Literal, NamedTuple, cast

from engine.batch import Slice, current_slice
from engine.table import RESERVED, KeyValueShard, Shard, Table
from models.knowledge.knowledge import Asked, Knowledge
from models.knowledge.query import Found, Query
from models.knowledge.recall import TTL_MS, Entry, Recalled, alike, entry_of, exact, remembered, similar

log = logging.getLogger(__name__)

PORTION: Final = 500
"""Sessions that are looked at with every checkpoint, whether they are too old."""
USED: Final = 10_000
"""Sessions whose uses are remembered until their next miss writes them."""
COMPARED: Final = 50
"""Of so many similar questions one is looked up all the same, to see what the others were spared."""
ALIKE: Final = 0.5
"""Share of its passages that a similar question must have found too, or it counts as wrong."""

Source = Literal["exact", "similar", "search"]


class Retrieved(NamedTuple):
    """What a question has found."""

    found: list[Found]
    source: Source
    version: tuple[int, ...]
    """Of the knowledge that it is true in."""
    embedder: str
    stale: bool = False
    """Qdrant was asked in vain: found by words alone, and not kept for the next question."""
    reranker: str = ""
    """Identity of the version that has ordered them; empty: the fusion has."""
    unranked: str | None = None
    """Why the reranker that is set hasn't."""


class Retrievals(Table[str, Recalled]):
    """session -> its questions and the passages that they found. Put by whoever asks in an agent."""

    name = "retrievals"
    retention = timedelta(milliseconds=TTL_MS)

    def __init__(self) -> None:
        super().__init__()
        self._uses: OrderedDict[str, Counter[str]] = OrderedDict()
        self._cursor: dict[int, bytes] = {}

    async def retrieve(self, session: str, query: Query, now: int, asked: Asked | None = None) -> Retrieved:
        """The passages that answer a question, for the session of the event at work. now: the event's time, ms. asked:
        the question's vector, where somebody has it already.

        Raises KnowledgeAwayError before this worker has read what is known.
        """
        knowledge = current_slice().task.engine.knowledge
        recalled = self.get(session) or Recalled()
        reranker = knowledge.reranking.identity
        own = exact(recalled, query, knowledge.embedder, now, reranker)
        if own is not None and (again := await self._again(knowledge, query, own)) is not None:
            return self._reused(knowledge, session, own, again)
        if own is None:
            near = alike(recalled, query, knowledge.embedder, now, reranker)
            by_words = near is not None
            if near is None:
                asked = await knowledge.asked(query.text) if asked is None else asked
                if asked.vector is not None:
                    near = similar(recalled, query, asked.vector, asked.embedder, now, reranker)
            if near is not None and (again := await self._again(knowledge, query, near)) is not None:
                if knowledge.counts["similar"] % COMPARED == 0:
                    await self._compare(knowledge, query, asked, again.found)
                knowledge.counts["alike"] += by_words
                return self._reused(knowledge, session, near, again._replace(source="similar"))
        if asked is None:
            asked = await knowledge.asked(query.text)
        knowledge.counts["miss"] += 1
        answer = await knowledge.search(query, asked)
        told = Retrieved(
            answer.found, "search", answer.version, answer.embedder, answer.stale, answer.reranker, answer.unranked
        )
        if answer.stale:
            return told
        fresh = entry_of(query, asked.vector, answer.embedder, answer.found, answer.version, now, answer.reranker)
        newest = self.get(session) or Recalled()  # another agent may have asked meanwhile
        for one in newest.entries:
            one.uses += self._uses.get(session, Counter())[one.asked]
        self._uses.pop(session, None)
        self[session] = remembered(newest, fresh)
        return told

    async def _again(self, knowledge: Knowledge, query: Query, entry: Entry) -> Retrieved | None:
        """What an entry found, as it is now; None where that isn't what a search would find any more."""
        again = await knowledge.again(query, entry)
        if again is None:
            knowledge.counts["stale"] += 1
            return None
        return Retrieved(again.found, "exact", again.version, entry.embedder, reranker=entry.reranker)

    def _reused(self, knowledge: Knowledge, session: str, entry: Entry, again: Retrieved) -> Retrieved:
        knowledge.counts[again.source] += 1
        self._uses.setdefault(session, Counter())[entry.asked] += 1  # a hit writes nothing
        self._uses.move_to_end(session)
        if len(self._uses) > USED:
            self._uses.popitem(last=False)
        return again

    async def _compare(self, knowledge: Knowledge, query: Query, asked: Asked | None, found: list[Found]) -> None:
        answer = await knowledge.search(query, asked)
        there = {one.passage for one in found}
        alike = sum(one.passage in there for one in answer.found)
        knowledge.counts["compared"] += 1
        knowledge.counts["wrong"] += bool(answer.found) and alike < ALIKE * len(answer.found)

    def describe(self, shard: Shard, raw: bytes) -> Any:
        """For people: questions, ages and passages, without vectors."""
        return [
            {"asked": one.asked, "at": one.at, "passages": [hit.passage for hit in one.hits], "uses": one.uses}
            for one in self.decode(raw).entries
        ]

    def expire(self, shard: Shard, watermark: int, busy: Iterable[Slice[Any]]) -> bool:
        """Forgets a portion of the sessions whose newest question is too old. Returns whether any went."""
        rows = cast(KeyValueShard, shard)
        at_work = {key for s in busy for key in s.keys}
        portion = rows.items(self._cursor.get(id(shard), b""), PORTION)
        self._cursor[id(shard)] = portion[-1][0] + b"\0" if len(portion) == PORTION else b""
        gone = [key for key, raw in portion if key not in at_work and self._old(key, raw, watermark)]
        return rows.forget(gone)

    def _old(self, key: bytes, raw: bytes, watermark: int) -> bool:
        if key.startswith(RESERVED):
            return False
        return max((one.at for one in self.decode(raw, key).entries), default=0) < watermark - TTL_MS


retrievals = Retrievals()
