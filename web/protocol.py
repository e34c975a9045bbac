"""What isn't HTTP gets an answer of ours: aiohttp's own would repeat what was sent, and name its version."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, cast

from aiohttp import web

from web import answers

log = logging.getLogger(__name__)

KEEP_ALIVE_S: Final = 30.0
"""Seconds that a connection may wait for its next request."""
LINGER_S: Final = 1.0
"""Seconds that an answer given early lets its request's body go on arriving."""


class Protocol(web.RequestHandler):
    """One connection."""

    __slots__ = ("gone",)

    def __init__(self, server: web.Server) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=cast(Any, None),  # none is kept
            keepalive_timeout=KEEP_ALIVE_S,
            lingering_time=LINGER_S,
        )
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the client has gone: aiohttp tells it only to those who write."""

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if not self.gone.done():
            self.gone.set_result(None)

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
