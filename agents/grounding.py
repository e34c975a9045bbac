"""What a message is answered from: passages of its tenant, where they have to do with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from core.errors import KnowledgeAwayError, TaskError
from core.messages import Citation, Message
from engine.batch import Slice
from engine.engine import Engine
from models.knowledge.extraction import extract, nearness, parted
from models.knowledge.knowledge import Asked
from models.knowledge.query import Found, Query
from models.knowledge.quoting import citation
from models.knowledge.relevance import relevant
from tables.retrievals import retrievals

PASSAGES: Final = 4
"""That a model is shown, as far as there is room. One of five answers 75 % of the questions made of headings; more of
them fill a small model's window."""
LOOK_S: Final = 0.05
"""Until it is asked again whether this worker knows enough by now."""
PATIENCE_S: Final = 5.0
"""That a message waits at most until this worker has read what is known; then it is answered that it can't be."""

ANSWERED: Final = ("user", "tool")
"""Whose messages are answered."""
UNKNOWN: Final = "That is not in the knowledge."
AWAY: Final = "The knowledge can't be asked at the moment."


class Ground(NamedTuple):
    """What was found for a message."""

    query: Query
    found: list[Found]
    """The best first; empty where nothing has to do with it."""
    version: tuple[int, ...]
    """Of the knowledge that it is true in."""
    embedder: str
    stale: bool
    """Whether the tenant has documents that can't be found yet, or not by their meaning."""
    reranker: str = ""
    """Identity of the version that has ordered what was found; empty: the fusion has."""


class Quote(NamedTuple):
    """A document's own words as an answer."""

    text: str
    citations: list[Citation]


class Grounding:
    """Asks what is known, on behalf of a worker's sessions."""

    def __init__(self, engine: Engine) -> None:
        self._knowledge = engine.knowledge
        self._settings = engine.settings

    def query(self, message: Message) -> Query | None:
        """What is asked; None: the message isn't answered from what is known."""
        settings = self._settings
        if message.role not in ANSWERED or not (
            settings.chat_knowledge if message.knowledge is None else message.knowledge
        ):
            return None
        tags = settings.chat_tags if message.tags is None else message.tags
        return Query(text=message.text, tenant=message.tenant, tags=tuple(tags), count=PASSAGES)

    async def ready(self, s: Slice[Message], until: float) -> None:
        """Returns once this worker knows what was known when it started. until: monotonic. Raises KnowledgeAwayError
        where that takes too long, TaskError where the message is no longer ours."""
        until = min(until, time.monotonic() + PATIENCE_S)
        while not self._knowledge.caught_up.is_set():
            if time.monotonic() > until:
                raise KnowledgeAwayError("the knowledge of this worker is still being read")
            await asyncio.sleep(LOOK_S)
            if s.stale:
                raise TaskError(f"partition {s.partition} has moved on")

    @property
    def version(self) -> tuple[int, ...]:
        """Of all that this worker knows right now."""
        return self._knowledge.library.version

    @property
    def embedder(self) -> str:
        """Identity of the version that questions are compared by."""
        return self._knowledge.embedder

    @property
    def reranker(self) -> str:
        """Identity of the version that orders passages now; empty where there is none."""
        return self._knowledge.reranking.identity

    async def find(self, message: Message, query: Query, asked: Asked | None = None) -> Ground:
        """asked: the question's vector, where somebody has it already. Raises KnowledgeAwayError."""
        got = await retrievals.retrieve(message.session, query, message.ts, asked)
        stale = got.stale or await self._knowledge.behind(query.tenant)
        vectors = bool(got.embedder) and not stale
        found = got.found if relevant(query, got.found, self._settings.chat_relevance, vectors=vectors) else []
        return Ground(query, found, got.version, got.embedder, stale, got.reranker)

    async def quote(self, ground: Ground, asked: Asked | None = None) -> Quote:
        """The sentences that answer best, of the passages that were found; there is one at least."""
        asked = await self._knowledge.asked(ground.query.text) if asked is None else asked
        parts = [(one, part) for one in ground.found for part in parted(one)]
        cosines = await self._knowledge.cosines(asked, [part.text for _, part in parts]) if parts else None
        near = nearness(ground.query.text, [part for _, part in parts], cosines)
        best = parts[int(near.argmax())][0] if parts else ground.found[0]
        own = [place for place, (one, _) in enumerate(parts) if one is best]
        if not own:
            return Quote(f'"{best.text}" [1]', [citation(1, best, best.start, best.end, cited=True)])
        told = extract(best, [parts[place][1] for place in own], np.take(near, own))
        return Quote(f'"{told.text}" [1]', [citation(1, best, told.start, told.end, cited=True)])

    async def there(self, tenant: str | None, citations: Sequence[Citation]) -> list[Citation]:
        """Those whose passages are still there: what was deleted meanwhile is not cited."""
        if not citations:
            return []
        there = await self._knowledge.there(tenant, {one.passage for one in citations})
        return [one for one in citations if one.passage in there]
