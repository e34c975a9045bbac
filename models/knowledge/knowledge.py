"""What a worker knows, for its event loop: nothing here blocks it."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from core.errors import KnowledgeAwayError, QdrantError
from models.knowledge.library import Library, Pending, Record
from models.knowledge.qdrant import Qdrant, Told
from models.knowledge.query import LONGEST, Found, Query
from models.knowledge.recall import Entry
from models.knowledge.record import WIRE
from models.knowledge.reranking import Reranking
from models.knowledge.search import DEPTH
from models.live import LiveModels

LOOK_S: Final = 10.0
VECTORS: Final = 2_048
"""Questions whose vectors are kept, over all sessions: 1.5 KB each."""
P = ParamSpec("P")
T = TypeVar("T")


class Asked(NamedTuple):
    """A question's vector, and who made it."""

    vector: NDArray[np.float32] | None
    """(size,), of length 1; None where there is no embedder."""
    embedder: str
    """Identity of its version."""


class Answer(NamedTuple):
    """What a question has found, and in which state of the knowledge."""

    found: list[Found]
    stamp: int
    """Of the tenant's knowledge (Library.stamp), taken before the search: equal stamps, equal answers."""
    version: tuple[int, ...]
    """Of all knowledge: next offset of each partition of `passages`."""
    embedder: str
    stale: bool = False
    """Qdrant was asked in vain: these are what words alone find."""
    reranker: str = ""
    """Identity of the version that has ordered them; empty: the fusion has."""
    unranked: str | None = None
    """Why the reranker that is set hasn't."""


class Knowledge:
    """The library of this worker, and the embedder that it goes with. Belongs to one event loop; made before it is
    opened."""

    def __init__(
        self,
        models: LiveModels,
        embedder: str | None = None,
        qdrant: Qdrant | None = None,
        reranker: str | None = None,
    ) -> None:
        """embedder: the model's name; None: the only one there is. qdrant: what compares the vectors; None: this
        worker. reranker: the model that orders what was found; None: nobody does."""
        self.qdrant = qdrant
        self.reranking = Reranking(models, reranker)
        self._models = models
        self._name = embedder
        self._library: Library | None = None
        self._writer = ThreadPoolExecutor(1, "knowledge")
        self._reader = ThreadPoolExecutor(1, "knowledge-reads")
        self.caught_up = asyncio.Event()
        """Set once all that was on the topic at the start is in the library."""
        self.counts: Counter[str] = Counter()
        """Of questions of sessions (tables/retrievals.py): exact, similar (alike of those: without a vector) and miss;
        stale: an earlier one was there, but the knowledge has changed; compared, and wrong of those: similar ones that
        were looked up all the same."""
        self.likenesses: Counter[str] = Counter()
        """Of questions similar to an answered one (agents/sources.py): hit, they got its answer; compared: they got
        their own, and right of those: it was the same; would_hit: of the compared, those that the boundary would have
        answered, and wrong of those: by another answer than their own."""
        self._vectors: OrderedDict[tuple[str, str], NDArray[np.float32]] = OrderedDict()
        self.seen: dict[str, Any] = {}
        """What status() said when somebody last asked: no more than LOOK_S old while the worker runs."""
        self.making = 0
        """Documents that this worker makes passages of right now."""

    @property
    def library(self) -> Library:
        """Raises KnowledgeAwayError before it is opened."""
        if self._library is None:
            raise KnowledgeAwayError("the knowledge of this worker isn't open yet: ask again")
        return self._library

    @property
    def embedder(self) -> str:
        """Identity of the version that makes vectors now; empty where there is none."""
        found = self._models.embedder(self._name)
        return "" if found is None else found.identity

    async def open(self, folder: Path | None) -> Library:
        """folder: None keeps it in memory."""
        self._library = await self.write(Library, folder, mirrored=self.qdrant is not None)
        return self._library

    async def close(self) -> None:
        """Ends what is under way, and closes the library."""
        await asyncio.to_thread(self._reader.shutdown)
        await asyncio.to_thread(self._writer.shutdown)
        if self._library is not None:
            await asyncio.to_thread(self._library.close)
        if self.qdrant is not None:
            await self.qdrant.close()

    async def write(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Runs it where the library is written, after what waits there."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, lambda: work(*args, **options))

    async def apply(self, records: Sequence[Record]) -> None:
        """Takes records of `passages` in, as one step."""
        await self.write(self.library.apply, records)

    async def pending(
        self, partitions: Iterable[int], embedder: str, count: int, *, newest: bool, most: int
    ) -> list[Pending]:
        """As Library.pending."""
        return await self.write(self.library.pending, list(partitions), embedder, count, newest=newest, most=most)

    async def asked(self, text: str) -> Asked:
        """A question's vector: what was asked lately, by whomever, needn't be embedded again."""
        with self._models.embedding(self._name) as embedder:
            if embedder is None or not text.strip():
                return Asked(None, "")
            key = (embedder.identity, text[:LONGEST])
            if (known := self._vectors.get(key)) is not None:
                self._vectors.move_to_end(key)
                return Asked(known, embedder.identity)
            vector = await embedder.question(key[1])
            if not np.isfinite(vector).all():
                return Asked(None, "")
            self._vectors[key] = vector
            if len(self._vectors) > VECTORS:
                self._vectors.popitem(last=False)
            return Asked(vector, embedder.identity)

    async def search(self, query: Query, asked: Asked | None = None) -> Answer:
        """What answers a question. asked: its vector, where somebody has it already. Raises KnowledgeAwayError before
        the library has what the topic had at the start: it would deny what is known."""
        library = self.library
        if not self.caught_up.is_set():
            raise KnowledgeAwayError("the knowledge of this worker is still being read: ask again")
        asked = await self.asked(query.text) if asked is None else asked
        stamp, version = library.stamp(query.tenant), library.version

        told, stale = await self._told(query, asked)

        wide = replace(query, count=self.reranking.wanted(query.count))

        def look() -> list[Found]:
            return library.search(wide, asked.vector, asked.embedder, told=told)

        found = await asyncio.get_running_loop().run_in_executor(self._reader, look)
        best = await self.reranking.ranked(query.text[:LONGEST], found, query.count)
        return Answer(best.found, stamp, version, asked.embedder, stale, best.reranker, best.unranked)

    async def _told(self, query: Query, asked: Asked) -> tuple[list[Told] | None, bool]:
        """What Qdrant finds, where there is one; nothing where it fails, and whether it did."""
        if self.qdrant is None or asked.vector is None:
            return None, False
        try:
            return await self.qdrant.nearest(query, asked.vector, asked.embedder, DEPTH), False
        except QdrantError:
            return [], True

    async def again(self, query: Query, entry: Entry) -> Answer | None:
        """What an earlier question has found, as it is now; None where a search might find others by now
        (Library.again). Raises KnowledgeAwayError as search()."""
        library = self.library
        if not self.caught_up.is_set():
            raise KnowledgeAwayError("the knowledge of this worker is still being read: ask again")
        stamp, version = library.stamp(query.tenant), library.version
        vector = np.frombuffer(entry.vector, WIRE).astype(np.float32) if entry.vector else None

        def look() -> list[Found] | None:
            return library.again(query, entry.hits, vector, entry.version)

        found = await asyncio.get_running_loop().run_in_executor(self._reader, look)
        return None if found is None else Answer(found, stamp, version, entry.embedder, reranker=entry.reranker)

    async def there(self, tenant: str | None, passages: Iterable[str]) -> set[str]:
        """As Search.there."""
        return await asyncio.get_running_loop().run_in_executor(
            self._reader, self.library.reader.there, tenant, list(passages)
        )

    async def behind(self, tenant: str | None) -> bool:
        """As Search.behind."""
        behind = self.library.reader.behind
        return await asyncio.get_running_loop().run_in_executor(self._reader, behind, tenant, self.embedder)

    async def cosines(self, asked: Asked, texts: Sequence[str]) -> NDArray[np.float32] | None:
        """(n,): of parts of passages to a question; None where there is no embedder, or another one by now."""
        with self._models.embedding(self._name) as embedder:
            if embedder is None or asked.vector is None or embedder.identity != asked.embedder:
                return None
            vectors = await embedder.passages(texts, aside=False)
            return np.asarray(vectors @ asked.vector, np.float32)

    async def status(self) -> dict[str, Any]:
        """For people: counts, positions, the embedder."""
        told = await self.write(self.library.status, self.embedder)
        with self._models.embedding(self._name) as embedder:
            name = None if embedder is None else embedder.manifest.identity
        waiting, qdrant = told.pop("waiting"), None
        if self.qdrant is not None:
            qdrant = {"collection": self.qdrant.collection, "error": self.qdrant.error, "waiting": waiting}
        self.seen = {
            **told,
            "embedder": name,
            "caught_up": self.caught_up.is_set(),
            "making": self.making,
            "qdrant": qdrant,
            "reranker": self.reranking.status(),
            "retrievals": dict(self.counts),
            "similar_answers": dict(self.likenesses),
        }
        return self.seen
