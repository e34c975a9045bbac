"""What this worker knows: how much it is, and what answers a question."""

from __future__ import annotations

import time
from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import Meta

from engine.app import App
from models.knowledge.query import LONGEST, Found, Query
from web import answers
from web.errors import MalformedError
from web.operations import Operation, Parameter, operation
from web.parameters import parameters

COUNT: Final = 8
MOST: Final = 50

Tenant = Annotated[str, Meta(min_length=1)]
Question = Annotated[str, Meta(min_length=1, max_length=LONGEST)]
Count = Annotated[int, Meta(ge=1, le=MOST)]


class QdrantStatus(msgspec.Struct):
    """What compares the vectors, where HOMUNCULUS_QDRANT_URL names it."""

    collection: str
    error: str | None
    """Why the last call failed; null: it didn't."""
    waiting: int
    """Changes of this worker's partitions that it hasn't been told of."""


class RerankerStatus(msgspec.Struct):
    """What orders passages anew, where HOMUNCULUS_RERANKER_MODEL names it. Questions, by what came of each."""

    model: str | None
    """NAME@VERSION; null: it isn't live here, and the fused order stands."""
    error: str | None
    """Why the last question wasn't reranked; null: it was."""
    reranked: int
    late: int
    failed: int
    away: int


class KnowledgeStatus(msgspec.Struct):
    """GET /knowledge."""

    worker: str
    documents: int
    passages: int
    vectors: int
    pending: int
    """Documents whose newest text isn't found yet."""
    failed: int
    """Documents that nothing could be made of: dead letters say why."""
    making: int
    """Documents that this worker makes passages of right now."""
    vector_bytes: int
    embedder: str | None
    """NAME@VERSION; null: there is none, and words alone are searched."""
    caught_up: bool
    retrievals: dict[str, int]
    """Questions of sessions: exact, similar (alike: those of them that needed no vector), miss, stale, compared,
    wrong."""
    similar_answers: dict[str, int]
    """Questions similar to an answered one, where a user allows for errors: hit, compared, right, would_hit, wrong."""
    positions: dict[str, int]
    """Partition of `passages` -> next offset: the version of the knowledge."""
    qdrant: QdrantStatus | None
    """null: this worker compares the vectors itself."""
    reranker: RerankerStatus | None
    """null: none is set."""


class SearchAnswer(msgspec.Struct):
    """GET /knowledge/search."""

    worker: str
    found: list[Found]
    """The best first."""
    version: list[int]
    embedder: bool
    """Whether meaning counted, or words alone."""
    stale: bool
    """Qdrant was asked in vain: words alone have found these."""
    reranked: bool
    """Whether a reranker has ordered them; else the fused ranks have."""
    unranked: str | None
    """Why the reranker that is set hasn't; null: it has, or none is set."""
    ms: float


class Knowledge:
    """Every worker has all of it, and answers for itself."""

    def __init__(self, app: App) -> None:
        self._app = app

    def routes(self) -> list[web.RouteDef]:
        """GET /knowledge, /knowledge/search."""
        return [web.get("/knowledge", self.status), web.get("/knowledge/search", self.search)]

    @operation(Operation(gives=KnowledgeStatus))
    async def status(self, request: web.Request) -> web.Response:
        """How much this worker knows, and what is still to be made."""
        parameters(request)
        engine = self._app.engine
        told = await engine.knowledge.status()
        return answers.json(msgspec.convert({"worker": engine.name, **told}, KnowledgeStatus))

    @operation(
        Operation(
            gives=SearchAnswer,
            parameters=(
                Parameter("q", Question, "the question", required=True),
                Parameter("tenant", Tenant, "whose knowledge; without it, what belongs to no tenant"),
                Parameter("tags", str, "tags that a document must have, with commas"),
                Parameter("count", Count, f"passages, at most; by default {COUNT}"),
            ),
        )
    )
    async def search(self, request: web.Request) -> web.Response:
        """The passages that answer a question best."""
        given = parameters(request, "q", "tenant", "tags", "count")
        text = given.get("q", "")
        if not 1 <= len(text) <= LONGEST:
            raise MalformedError(f"q must be a question of 1 to {LONGEST} characters")
        if given.get("tenant") == "":
            raise MalformedError("tenant must not be empty: leave it out for what belongs to none")
        query = Query(
            text=text,
            tenant=given.get("tenant"),
            tags=tuple(filter(None, given.get("tags", "").split(","))),
            count=_count(given.get("count", str(COUNT))),
        )
        began = time.perf_counter()
        answer = await self._app.engine.knowledge.search(query)
        ms = round(1e3 * (time.perf_counter() - began), 2)
        told = SearchAnswer(
            worker=self._app.engine.name,
            found=answer.found,
            version=list(answer.version),
            embedder=bool(answer.embedder),
            stale=answer.stale,
            reranked=bool(answer.reranker),
            unranked=answer.unranked,
            ms=ms,
        )
        return answers.json(told)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MOST):
        raise MalformedError(f"count must be a number from 1 to {MOST}")
    return int(text)
