"""Which worker holds a key: murmur2 of the key's bytes gives the partition, the group's assignment its owner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from ssl import SSLContext
from typing import Any, Final

import msgspec
from aiohttp import (
    ClientConnectorCertificateError,
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    TCPConnector,
    web,
)
from yarl import URL

from engine.app import App
from engine.publisher import partition_of
from engine.table import Shard
from web.errors import BusyError, NotOpenError, OwnerError, UnreachableError
from web.events import HEARTBEAT_S, Events

HOP: Final = "X-Homunculus-Forwarded"
"""On what one worker asks of another: such a request is never passed on."""
STALENESS: Final = "X-Staleness-Ms"
"""On what a copy answers: it has all that was committed so long ago, and perhaps more."""
CUT: Final = "X-Cut"
"""On an answer that shows the beginning of a big value alone."""
HANDED_DOWN: Final = ("Authorization", "If-None-Match")
PASSED_ON: Final = {"ETag", "Retry-After", STALENESS, CUT}
FORWARD_S: Final = 5.0
FOLLOWING: Final = ClientTimeout(total=None, sock_connect=FORWARD_S, sock_read=2 * HEARTBEAT_S)
FAULTS: Final = (ClientError, OSError, TimeoutError)
DATA: Final = b"data: "
REPORT_S: Final = 0.8
"""What another worker's report may take: they are waited for once a second."""
NO_REPORT: Final = {401: "doesn't know this token: it has another one", 404: "runs a release that can't tell"}
"""What an answer that isn't a report means."""
LARGEST: Final = 8 << 20
"""Bytes of an answer that is passed on."""


class Owners:
    """Finds the worker of a partition, and asks it on behalf of a client."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._session: ClientSession | None = None
        self.trusted: SSLContext | bool = True
        """Whose certificates it believes; True: whom the machine does."""

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
        return await self._ask(self._owner(request, partition), request, partition)

    async def follow(self, request: web.Request, partition: int, events: Events) -> web.StreamResponse:
        """What the owner streams, or its refusal. Raises as forward() does, and BusyError."""
        owner = self._owner(request, partition)
        try:
            answer = await self._get(owner, request, FOLLOWING)
            if answer.status != 200:
                async with answer:
                    return await _passed_on(answer, partition)
        except FAULTS as error:
            raise _unreachable(owner, partition, error) from error
        try:
            return events.stream(Relay(answer, owner, partition))
        except BusyError:
            answer.close()
            raise

    async def listen(self, request: web.Request, partition: int, path: str) -> Relay:
        """What the owner streams at a path, on behalf of a request. Raises as forward() does."""
        owner = self._owner(request, partition)
        try:
            answer = await self._get(owner, request, FOLLOWING, path)
        except FAULTS as error:
            raise _unreachable(owner, partition, error) from error
        if answer.status != 200:
            answer.close()
            raise OwnerError(f"the owner of partition {partition} answers with status {answer.status}")
        return Relay(answer, owner, partition)

    def _owner(self, request: web.Request, partition: int) -> URL:
        owner = self.url(partition)
        if owner is None or self._app.rebalancing or HOP in request.headers or owner == self._app.conf.canonical_url:
            raise NotOpenError(f"partition {partition} has no owner that this worker knows of at the moment: ask again")
        return owner

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
                if answer.status in {200, 304, 404}:
                    return answer
        return None

    async def _ask(self, owner: URL, request: web.Request, partition: int) -> web.Response:
        try:
            async with await self._get(owner, request, ClientTimeout(total=FORWARD_S)) as answer:
                return await _passed_on(answer, partition)
        except FAULTS as error:
            raise _unreachable(owner, partition, error) from error

    async def _get(
        self, owner: URL, request: web.Request, timeout: ClientTimeout, path: str | None = None
    ) -> ClientResponse:
        """path: where another one than the request's is asked for; encoded."""
        headers = {HOP: "1"} | {name: request.headers[name] for name in HANDED_DOWN if name in request.headers}
        target = URL(f"{owner.origin()}{path or request.rel_url.raw_path_qs}", encoded=True)
        return await self._client().get(target, headers=headers, allow_redirects=False, timeout=timeout)

    def others(self) -> dict[URL, list[int]]:
        """Where the other workers take requests -> the partitions that the group has given them."""
        assignor: Any = self._app.assignor
        found = {}
        for url, topics in assignor.external_topics_metadata().items():
            if URL(url) != self._app.conf.canonical_url:
                held = (partitions for topic, partitions in topics.items() if topic in self._app.engine.sources)
                found[URL(url)] = sorted(set[int]().union(*held))
        return found

    async def report(self, url: URL, after: int, authorization: str | None) -> bytes:
        """What another worker reports of itself since a second. Raises UnreachableError, and OwnerError where it has
        an answer that is no report; neither repeats what it said."""
        return await self.fetch(url, f"/overview/here?after={after}", authorization)

    async def fetch(self, url: URL, path: str, authorization: str | None) -> bytes:
        """What another worker answers on a path of ours. Raises as report() does."""
        headers = {"Authorization": authorization} if authorization else {}
        target = url.origin().join(URL(path))
        limit = ClientTimeout(total=REPORT_S)
        try:
            async with self._client().get(target, headers=headers, allow_redirects=False, timeout=limit) as answer:
                if answer.status != 200:
                    raise OwnerError(NO_REPORT.get(answer.status, f"answers with status {answer.status}"))
                return await _body(answer, "it")
        except FAULTS as error:
            raise UnreachableError(f"does not answer ({type(error).__name__})") from error

    async def close(self) -> None:
        """Ends the connections to other workers."""
        if self._session is not None:
            await self._session.close()

    def _client(self) -> ClientSession:
        if self._session is None:
            # Their number is that of our own clients: one that follows must not keep others from asking.
            connector = TCPConnector(limit=0, ssl=self.trusted)
            self._session = ClientSession(connector=connector)
        return self._session


class Relay:
    """The messages of an owner's stream; ends when that does."""

    def __init__(self, answer: ClientResponse, owner: URL, partition: int) -> None:
        self._answer = answer
        self._owner = owner
        self._partition = partition

    def __aiter__(self) -> AsyncIterator[msgspec.Raw]:
        return self

    async def __anext__(self) -> msgspec.Raw:
        try:
            async for line in self._answer.content:
                if line.startswith(b"event: "):
                    break  # the end
                if line.startswith(DATA):
                    return msgspec.Raw(line.removeprefix(DATA).rstrip())
        except FAULTS as error:
            raise _unreachable(self._owner, self._partition, error) from error
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Lets the owner know that nobody listens any more."""
        self._answer.close()


async def _body(answer: ClientResponse, who: str) -> bytes:
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > LARGEST:
            raise OwnerError(f"{who} answers with more than {LARGEST} bytes")
    return bytes(body)


async def _passed_on(answer: ClientResponse, partition: int) -> web.Response:
    body = await _body(answer, f"the owner of partition {partition}")
    if answer.status == 304:
        response = web.Response(status=304)
    else:
        kind, charset = answer.content_type, answer.charset
        response = web.Response(body=body, status=answer.status, content_type=kind, charset=charset)
    response.headers.update({name: answer.headers[name] for name in PASSED_ON & answer.headers.keys()})
    return response


def _unreachable(owner: URL, partition: int, error: BaseException) -> UnreachableError:
    if isinstance(error, ClientConnectorCertificateError):
        hint = (
            "its certificate isn't one that this worker trusts: name the authority that has signed it with "
            "HOMUNCULUS_WEB_CA, and see that it is made out to that host"
        )
    else:
        hint = (
            "ask again, the group gives its partitions to others once it is taken for dead; where workers run on "
            "several machines, start each with --web-host and the name that the others reach it by"
        )
    return UnreachableError(
        f"the owner of partition {partition} at {owner} does not answer ({type(error).__name__}): {hint}"
    )
