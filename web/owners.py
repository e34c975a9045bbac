"""Which worker holds a key: murmur2 of the key's bytes gives the partition, the group's assignment its owner."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import ClientError, ClientSession, ClientTimeout, web
from yarl import URL

from engine.app import App
from engine.publisher import partition_of
from engine.table import Shard
from web.errors import NotOpenError, OwnerError, UnreachableError

HOP: Final = "X-Homunculus-Forwarded"
"""On what one worker asks of another: such a request is never passed on."""
STALENESS: Final = "X-Staleness-Ms"
"""On what a copy answers: it has all that was committed so long ago, and perhaps more."""
PASSED_ON: Final = {"Retry-After", STALENESS}
FORWARD_S: Final = 5.0
LARGEST: Final = 8 << 20
"""Bytes of an answer that is passed on."""


class Owners:
    """Finds the worker of a partition, and asks it on behalf of a client."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._session: ClientSession | None = None

    def partition(self, key: bytes) -> int:
        """Where every Kafka client puts a record with this key."""
        return partition_of(key, self._app.settings.partitions)

    def here(self, table: str, partition: int) -> Shard | None:
        """The table's part on this worker; None when another worker holds the partition.

        Raises NotOpenError while it is this worker's, but not open.
        """
        task = self._app.engine.tasks.get(partition)
        if task is None:
            return None
        if not task.open:
            raise NotOpenError(f"partition {partition} is opening on this worker ({task.reason}): ask again")
        shard: Shard = task.shard(table)
        return shard

    def url(self, partition: int) -> URL | None:
        """Where the owner of a partition takes requests, as the group's last assignment says."""
        assignor: Any = self._app.assignor
        for url, topics in assignor.external_topics_metadata().items():
            if any(topic in self._app.engine.sources and partition in held for topic, held in topics.items()):
                return URL(url)
        return None

    async def forward(self, request: web.Request, partition: int) -> web.Response:
        """The owner's answer. Raises NotOpenError when nobody is known to own it, UnreachableError when it doesn't
        answer, OwnerError when its answer is too large."""
        owner = self.url(partition)
        if owner is None or self._app.rebalancing or HOP in request.headers or owner == self._app.conf.canonical_url:
            raise NotOpenError(f"partition {partition} has no owner that this worker knows of at the moment: ask again")
        return await self._ask(owner, request, partition)

    async def copy(self, request: web.Request, partition: int) -> web.Response | None:
        """What another worker's copy of a partition has to say; None where nobody has one."""
        if HOP in request.headers:
            return None
        assignor: Any = self._app.assignor
        owner, us = self.url(partition), self._app.conf.canonical_url
        for url in map(URL, assignor.external_topics_metadata()):
            if url not in {owner, us}:
                try:
                    answer = await self._ask(url, request, partition)
                except (UnreachableError, OwnerError):
                    continue
                if answer.status in {200, 404}:
                    return answer
        return None

    async def _ask(self, owner: URL, request: web.Request, partition: int) -> web.Response:
        headers = {HOP: "1"} | {name: request.headers[name] for name in ("Authorization",) if name in request.headers}
        target = URL(f"{owner.origin()}{request.rel_url.raw_path_qs}", encoded=True)
        try:
            async with self._client().get(target, headers=headers, allow_redirects=False) as answer:
                body = bytearray()
                async for piece in answer.content.iter_any():
                    body += piece
                    if len(body) > LARGEST:
                        raise OwnerError(f"the owner of partition {partition} answers with more than {LARGEST} bytes")
                response = web.Response(
                    body=bytes(body), status=answer.status, content_type=answer.content_type, charset=answer.charset
                )
                response.headers.update({name: answer.headers[name] for name in PASSED_ON & answer.headers.keys()})
                return response
        except (ClientError, OSError, TimeoutError) as error:
            raise UnreachableError(
                f"the owner of partition {partition} at {owner} does not answer ({type(error).__name__}): ask again, "
                "the group gives its partitions to others once it is taken for dead; where workers run on several "
                "machines, start each with --web-host and the name that the others reach it by"
            ) from error

    async def close(self) -> None:
        """Ends the connections to other workers."""
        if self._session is not None:
            await self._session.close()

    def _client(self) -> ClientSession:
        if self._session is None:
            self._session = ClientSession(timeout=ClientTimeout(total=FORWARD_S))
        return self._session
