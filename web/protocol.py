"""A connection: what can be is answered while it is read, and what isn't HTTP gets an answer of ours: aiohttp's own
would repeat what was sent, and name its version."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from web import answers
from web.connections import Connections

if TYPE_CHECKING:
    from web.shortcut import Shortcut

log = logging.getLogger(__name__)

KEEP_ALIVE_S: Final = 30.0
"""Seconds that a connection may wait for its next request."""
LINGER_S: Final = 1.0
"""Seconds that an answer given early lets its request's body go on arriving."""
END: Final = b"\r\n\r\n"
"""Of a request without a body."""


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

    __slots__ = ("_connections", "_plain", "_shortcut", "gone")

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
        self._plain = True
        """Whether all that has come was whole requests, one at a time, which were answered while they were read: what
        comes next is the beginning of one."""
        self._parser: Any = Parser(self._parser, self._answered)
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the client has gone: aiohttp tells it only to those who write."""

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if not self.gone.done():
            self.gone.set_result(None)

    def data_received(self, data: bytes) -> None:
        plain, self._plain = self._plain and self._idle, False
        if plain and (answer := self._shortcut.again(data)) is not None:
            self._send(answer)
            return
        super().data_received(data)
        self._plain = plain and self._plain and data.find(END) == len(data) - len(END)
        if self._plain:
            self._shortcut.remember(data)

    @property
    def _idle(self) -> bool:
        """Whether the next request can be answered at once. Requests before it, and a client that doesn't read, are
        waited for."""
        waits = self._waiter is not None and not self._waiter.done()
        return waits and not self.writing_paused and self.transport is not None

    def _answered(self, message: RawRequestMessage, payload: StreamReader) -> bool:
        """Whether a request has its answer already."""
        if not self._idle or payload is not EMPTY_PAYLOAD:
            return False
        answer = self._shortcut.answer(message)
        if answer is None:
            return False
        self._send(answer)
        return True

    def _send(self, answer: bytes) -> None:
        assert self.transport is not None
        self.transport.write(answer)
        self._plain = True
        self.keep_alive(True)  # ends aiohttp's clock, which knows nothing of this request: Connections has its own
        self._connections.used(self)

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
