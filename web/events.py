"""Server-sent events: what somebody follows, one JSON object a message, for as long as both sides are there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Final, cast

import msgspec
from aiohttp import web

from web import answers
from web.errors import BusyError, explain, status_of
from web.protocol import Protocol

log = logging.getLogger(__name__)

MOST: Final = 100
"""Streams of one worker, those that it passes on included."""
HEARTBEAT_S: Final = 5.0
"""Seconds of silence after which a comment is sent: who waits for twice as long may take the other side for dead."""
STALL_S: Final = 10.0
"""Seconds that a client may let what it was sent lie. Until then at most about 128 KiB and a message wait for it."""
FAREWELL_S: Final = 0.1
"""For the last message, when the worker stops."""
RETRY_MS: Final = 1000
"""When browsers are to connect again."""

Message = Mapping[str, Any] | msgspec.Struct | msgspec.Raw
"""What JSON can hold as an object, or JSON that is there already."""

STOPPING: Final = "the worker stops"


class GoneError(Exception):
    """The client has."""


class Events:
    """All streams of one server: their number has a limit, and they end together."""

    def __init__(self) -> None:
        self.opened: set[EventStream] = set()
        self._stopped = False

    def stream(self, source: AsyncIterator[Message]) -> EventStream:
        """The answer to a request, which is sent while the source has something to say. The next message is asked for
        when the last one has left, so a slow client holds up its own source alone.

        A source that raises, or ends, ends the stream with a message of type `end`. Raises BusyError.
        """
        self.check()
        return EventStream(source, self.opened)

    def check(self) -> None:
        """Raises BusyError where no other stream may begin."""
        if self._stopped:
            raise BusyError(STOPPING)
        if len(self.opened) >= MOST:
            raise BusyError(f"{MOST} streams are open on this worker, which is all that it serves: ask again")

    @property
    def stopped(self) -> bool:
        """Whether the worker stops."""
        return self._stopped

    def stop(self) -> None:
        """Every stream ends now, and no other begins."""
        self._stopped = True
        for stream in self.opened:
            stream.stop()


class EventStream(web.StreamResponse):
    """One client's. The server calls run() once its headers are complete; nothing else limits its time."""

    def __init__(self, source: AsyncIterator[Message], opened: set[EventStream]) -> None:
        super().__init__(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        self._source = source
        self._opened = opened
        self._pump: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._stopping = False

    async def run(self, request: web.BaseRequest) -> None:
        """Sends until the source, the client or the worker ends."""
        gone, self._transport = cast(Protocol, request.protocol).gone, request.transport
        self._opened.add(self)
        self._pump = asyncio.create_task(self._send_all(request))
        gone.add_done_callback(self._leave)
        try:
            await asyncio.wait([self._pump])
            if self._stopping and self.prepared:
                with suppress(GoneError):
                    await self._say("end", {"reason": STOPPING}, FAREWELL_S)
        finally:
            self._opened.discard(self)
            gone.remove_done_callback(self._leave)
            self._pump.cancel()
            await asyncio.wait([self._pump])
            if (close := getattr(self._source, "aclose", None)) is not None:
                await close()

    def stop(self) -> None:
        """The worker stops."""
        self._stopping = True
        self._leave()

    def _leave(self, *_: object) -> None:
        if self._pump is not None:
            self._pump.cancel()

    async def _send_all(self, request: web.BaseRequest) -> None:
        with suppress(GoneError):
            try:
                await self._begin(request)
                if request.method == "HEAD":
                    return
                await self._write(b"retry: %d\n\n" % RETRY_MS)
                async for message in self._in_time():
                    await self._write(b"data: %b\n\n" % answers.encode(message))
                reason = "there is nothing more to come from here: connect again"
            except GoneError:
                raise
            except Exception as error:
                if status_of(error) is None:
                    log.error("A stream failed", exc_info=error)
                reason = answers.OUR_FAULT if status_of(error) is None else explain(error)
            await self._say("end", {"reason": reason})

    async def _begin(self, request: web.BaseRequest) -> None:
        try:
            await self.prepare(request)
        except ConnectionError:
            raise GoneError from None

    async def _in_time(self) -> AsyncIterator[Message]:
        """The source's messages, and heartbeats between them."""
        while True:
            following = asyncio.ensure_future(anext(self._source))
            try:
                while not (await asyncio.wait([following], timeout=HEARTBEAT_S))[0]:
                    await self._beat()
            finally:
                if not following.done():
                    following.cancel()
                    await asyncio.wait([following])
            try:
                message = following.result()
            except StopAsyncIteration:
                return
            yield message

    async def _beat(self) -> None:
        """Nothing new, but somebody is here."""
        await self._write(b": still here\n\n")

    async def _say(self, kind: str, message: Message, within_s: float | None = None) -> None:
        await self._write(b"event: %b\ndata: %b\n\n" % (kind.encode(), answers.encode(message)), within_s)

    async def _write(self, data: bytes, within_s: float | None = None) -> None:
        try:
            async with asyncio.timeout(within_s or STALL_S):
                await self.write(data)
        except TimeoutError:
            if self._transport is not None:
                self._transport.abort()  # else what it doesn't take would go on waiting for it
            raise GoneError from None
        except ConnectionError:
            raise GoneError from None
