"""A connection: what can be is answered while it is read, and what isn't HTTP gets an answer of ours: aiohttp's own
would repeat what was sent, and name its version."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from web import answers
from web.connections import Connections

log = logging.getLogger(__name__)

KEEP_ALIVE_S: Final = 30.0
"""Seconds that a connection may wait for its next request."""
LINGER_S: Final = 1.0
"""Seconds that an answer given early lets its request's body go on arriving."""


Shortcut = Callable[[RawRequestMessage], bytes | None]
"""Answers a request at once, as it is sent; None: it can't."""


class Parser:
    """aiohttp's, less the requests that are answered as soon as they are read."""

    def __init__(self, parser: Any, answered: Callable[[RawRequestMessage, StreamReader], bool]) -> None:
        self._parser = parser
        self._answered = answered

    def feed_data(self, data: bytes) -> tuple[Sequence[tuple[RawRequestMessage, StreamReader]], bool, bytes]:
        """The requests that are left, whether another protocol follows them, and its first bytes."""
        messages, upgraded, tail = self._parser.feed_data(data)
        if len(messages) == 1 and not upgraded and self._answered(*messages[0]):
            self._parser.message_consumed()
            return (), False, b""
        return messages, upgraded, tail

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)


class Protocol(web.RequestHandler):
    """One connection."""

    __slots__ = ("_connections", "_shortcut", "gone")

    def __init__(self, server: web.Server, connections: Connections, shortcut: Shortcut) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=cast(Any, None),  # none is kept
            keepalive_timeout=KEEP_ALIVE_S,
            lingering_time=LINGER_S,
        )
        self._connections = connections
        self._shortcut = shortcut
        self._parser: Any = Parser(self._parser, self._answered)
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the client has gone: aiohttp tells it only to those who write."""

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if not self.gone.done():
            self.gone.set_result(None)

    def _answered(self, message: RawRequestMessage, payload: StreamReader) -> bool:
        """Whether a request has its answer already. Requests before it, and a client that doesn't read, are waited
        for: then it hasn't."""
        idle = self._waiter is not None and not self._waiter.done()
        if not idle or self.writing_paused or self.transport is None or payload is not EMPTY_PAYLOAD:
            return False
        answer = self._shortcut(message)
        if answer is None:
            return False
        self.transport.write(answer)
        self.keep_alive(True)  # ends aiohttp's clock, which knows nothing of this request: Connections has its own
        self._connections.used(self)
        return True

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answers what never became a request, and says on neither side what it was."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        if status < 500:
            log.debug("Not HTTP: %s", type(exc).__name__)
            words = "this is no HTTP request that the worker understands"
        else:
            log.error("A web view failed", exc_info=exc)
            words = answers.OUR_FAULT
        response = answers.sealed(answers.fault(status, words))
        response.force_close()
        return response
