"""A Qdrant collection with the passages' vectors: whoever owns a partition writes its points, every worker searches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.errors import CollectionError, QdrantError
from core.settings import Settings
from models.knowledge.database import mark
from models.knowledge.query import Query
from models.knowledge.record import WIRE

if TYPE_CHECKING:
    from qdrant_client import AsyncQdrantClient, models

SEARCH_S: Final = 1.0
"""What a question waits at most: then words alone answer it."""
WRITE_S: Final = 10.0
PAUSE_S: Final = 2.0
"""After a failure nobody's question waits for as long as this."""
PAGE: Final = 1_000
"""Points whose versions are read at a time."""
CHANNEL: Final = {
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 1_000,
    "grpc.keepalive_time_ms": 4_000,
    "grpc.keepalive_timeout_ms": 2_000,
    "grpc.http2.ping_timeout_ms": 2_000,
}
"""gRPC alone. By default a server that comes back isn't tried for up to two minutes, and a connection whose other end
has vanished is kept for as long as the kernel resends, a quarter of an hour. A ping is sent only while a call waits."""


class Point(NamedTuple):
    """A passage as it is to be in the collection. Its id is its key, so to write it twice is to write it once."""

    key: int
    passage: str
    tenant: str | None
    tags: tuple[str, ...]
    embedder: str
    partition: int
    version: str
    """Hash of all that it says."""
    vector: bytes
    """(size,) of WIRE."""


class Told(NamedTuple):
    """What a search there has found: the library knows whether it is still true."""

    key: int
    cosine: float


class Qdrant:
    """One collection of one server. Belongs to an event loop; connects when it is first asked."""

    def __init__(self, url: str, api_key: str | None, collection: str, grpc_port: int | None = None) -> None:
        """grpc_port: where the URL's host speaks gRPC, over TLS if the URL is https; None: HTTP alone."""
        self.collection = collection
        self.error: str | None = "nothing has been asked of it yet"
        """Why the last call failed; None: it didn't."""
        self._url = url
        self._api_key = api_key
        self._grpc_port = grpc_port
        self._name = url if grpc_port is None else f"{url} by gRPC at port {grpc_port}"
        self._client: AsyncQdrantClient | None = None
        self._size: int | None = None
        self._paused_until = 0.0

    @classmethod
    def of(cls, settings: Settings) -> Qdrant | None:
        """The one that the settings name."""
        if settings.qdrant_url is None:
            return None
        key = settings.qdrant_api_key
        secret = None if key is None else key.get_secret_value()
        return cls(str(settings.qdrant_url), secret, settings.app_id, settings.qdrant_grpc_port or None)

    async def close(self) -> None:
        """Nothing is asked of it any more; what is under way fails."""
        if self._client is not None:
            await self._client.close()

    # -- whoever owns a partition -------------------------------------------------------------------------------------

    async def open(self, size: int) -> None:
        """Makes the collection, or looks whether it is one of ours: of so many components, compared by cosine. Raises
        QdrantError."""
        if self._size == size:
            return
        async with self._asking(WRITE_S) as (client, models):
            if not await client.collection_exists(self.collection):
                wanted = models.VectorParams(size=size, distance=models.Distance.COSINE)
                await client.create_collection(self.collection, vectors_config=wanted)
            found = (await client.get_collection(self.collection)).config.params.vectors
            if not isinstance(found, models.VectorParams):
                self._refuse("has several kinds of vectors, or none")
            elif (found.size, found.distance) != (size, models.Distance.COSINE):
                self._refuse(f"has vectors of {found.size} components by {found.distance}, not of {size} by Cosine")
            tenants = models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True)
            keyword, integer = models.PayloadSchemaType.KEYWORD, models.PayloadSchemaType.INTEGER
            for field, schema in (("scope", tenants), ("tags", keyword), ("embedder", keyword), ("partition", integer)):
                await client.create_payload_index(self.collection, field, schema)
        self._size = size

    def _refuse(self, what: str) -> None:
        raise CollectionError(
            f"the collection {self.collection} {what}: give this group another APP_ID, or delete the collection, and "
            "it is made anew from what the workers know"
        )

    async def put(self, points: Sequence[Point]) -> None:
        """Writes them; returns once searches find them. Raises QdrantError."""
        async with self._asking(WRITE_S) as (client, models):
            structs = [
                models.PointStruct(
                    id=one.key,
                    vector=np.frombuffer(one.vector, WIRE).astype(np.float32).tolist(),
                    payload={
                        "passage": one.passage,
                        "scope": mark(one.tenant),
                        "tags": list(one.tags),
                        "embedder": one.embedder,
                        "partition": one.partition,
                        "version": one.version,
                    },
                )
                for one in points
            ]
            await client.upsert(self.collection, structs, wait=True)

    async def delete(self, keys: Collection[int]) -> None:
        """Those that are there; returns once no search finds them. Raises QdrantError."""
        async with self._asking(WRITE_S) as (client, models):
            await client.delete(self.collection, models.PointIdsList(points=list(keys)), wait=True)

    async def versions(self, partition: int) -> dict[int, str]:
        """Of all points of a partition, by their keys. Raises QdrantError."""
        found: dict[int, str] = {}
        following: Any = None
        while True:
            async with self._asking(WRITE_S) as (client, models):
                page, following = await client.scroll(
                    self.collection,
                    scroll_filter=models.Filter(must=[_is(models, "partition", partition)]),
                    limit=PAGE,
                    offset=following,
                    with_payload=["version"],
                )
            found |= {int(one.id): str((one.payload or {}).get("version")) for one in page}
            if following is None:
                return found

    def again(self) -> None:
        """The collection is looked at anew before it is next written to."""
        self._size = None

    # -- whoever asks -------------------------------------------------------------------------------------------------

    async def nearest(self, query: Query, vector: NDArray[np.float32], embedder: str, count: int) -> list[Told]:
        """What of a tenant's passages, with all the tags, is nearest to a question. vector: (size,), of length 1.
        Raises QdrantError: after SEARCH_S, and at once while it has just failed."""
        if time.monotonic() < self._paused_until or self._size != len(vector):
            raise QdrantError(
                f"Qdrant isn't to be asked right now: {self.error or 'its collection is looked at first'}"
            )
        async with self._asking(SEARCH_S) as (client, models):
            must = [_is(models, "scope", mark(query.tenant)), _is(models, "embedder", embedder)]
            must += [_is(models, "tags", tag) for tag in sorted(set(query.tags))]
            answer = await client.query_points(
                self.collection,
                query=vector.tolist(),
                query_filter=models.Filter(must=[*must]),
                limit=count,
                with_payload=False,
            )
        return [Told(int(one.id), one.score) for one in answer.points]

    @asynccontextmanager
    async def _asking(self, within_s: float) -> AsyncIterator[tuple[AsyncQdrantClient, Any]]:
        """The client and its models. Whatever fails in there is a QdrantError, and remembered."""
        try:
            if self._client is None:
                self._client = await asyncio.to_thread(_client, self._url, self._api_key, self._grpc_port)
            from qdrant_client import models

            async with asyncio.timeout(within_s):
                yield self._client, models
        except QdrantError as error:
            self._failed(str(error))
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise QdrantError(self._failed(f"{self._name}: closed meanwhile")) from error  # gRPC cancels its calls then
        except Exception as error:  # the client's own kinds, httpx's, gRPC's, pydantic's and a time-out's
            raise QdrantError(self._failed(f"{self._name}: {_words(error)}"[:500])) from error
        self.error, self._paused_until = None, 0.0

    def _failed(self, error: str) -> str:
        self.error, self._paused_until = error, time.monotonic() + PAUSE_S
        return error


def _client(url: str, api_key: str | None, grpc_port: int | None) -> AsyncQdrantClient:
    """In a thread: the import takes a second, and only who has a Qdrant pays it."""
    from qdrant_client import AsyncQdrantClient

    connect = partial(AsyncQdrantClient, url, api_key=api_key, timeout=int(WRITE_S), check_compatibility=False)
    if grpc_port is None:
        return connect()
    # one channel: gRPC has a single connection for all that are alike
    return connect(prefer_grpc=True, grpc_port=grpc_port, grpc_options={**CHANNEL}, pool_size=1)


def _words(error: Exception) -> str:
    """What an error says, in a line. gRPC's own text of it holds the library's state too."""
    from grpc.aio import AioRpcError

    told = f"{error.code().name}: {error.details()}" if isinstance(error, AioRpcError) else str(error)
    return " ".join(told.split()) or type(error).__name__


def _is(known: Any, field: str, value: str | int) -> models.FieldCondition:
    condition: models.FieldCondition = known.FieldCondition(key=field, match=known.MatchValue(value=value))
    return condition
