"""Answers in OpenAI's form: whole, or in chunks as they are made."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final, cast

from aiohttp import web

from core.messages import Message, Reply, Usage
from web import answers
from web.completions import (
    FINISHES,
    Chunk,
    ChunkChoice,
    Completion,
    CompletionRequest,
    Delta,
    Failure,
    Spent,
    Trouble,
    id_of,
)
from web.errors import explain, status_of
from web.events import STOPPING, EventStream, GoneError
from web.replies import Told

log = logging.getLogger(__name__)

SESSION: Final = "X-Session"
"""Header that names the session, on requests and on answers."""
ROUTED: Final = "X-Routed-To"
"""Header of an answer: WORKER/SLOT, who made it and where the session's attention state is."""
STATUS: Final = {
    "UnknownModelError": 404,
    "BusyError": 429,
    "OverloadedError": 429,
    "GenerationError": 500,
    "WorkerError": 500,
    "NoModelError": 503,
}
"""Class of what was wrong with a message -> status; of others 400."""
TYPES: Final = {400: "invalid_request_error", 404: "invalid_request_error", 429: "rate_limit_error"}
"""Status -> OpenAI's type of an error; of others api_error."""


class RefusedError(Exception):
    """The worker that has the session refuses the message."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.why or "the message is refused")
        self.kind = reply.error or "RefusedError"
        self.status = STATUS.get(self.kind, 400)


def failure(error: Exception) -> tuple[int, bytes]:
    """Status and body for an error."""
    if isinstance(error, RefusedError):
        status, words, kind = error.status, str(error), error.kind
    elif (known := status_of(error)) is not None:
        status, words, kind = known, explain(error), type(error).__name__
    else:
        log.error("A completion failed", exc_info=error)
        status, words, kind = 500, answers.OUR_FAULT, "WorkerError"
    if kind == "UnknownModelError":
        status, kind = 404, "model_not_found"
    return status, answers.encode(Failure(Trouble(words, TYPES.get(status, "api_error"), code=kind)))


def answer_of(reply: Reply) -> Reply:
    """A final reply that says something. Raises RefusedError."""
    if reply.finish == "refused" or (reply.finish == "timeout" and reply.error is not None):
        raise RefusedError(reply)
    return reply


class Whole(EventStream):
    """One JSON body, sent when the reply is final: that may take longer than other routes may."""

    def __init__(
        self, source: AsyncIterator[Any], opened: set[EventStream], asked: CompletionRequest, message: Message
    ) -> None:
        super().__init__(source, opened)
        self._asked = asked
        self._message = message
        if message.session.isascii() and message.session.isprintable():
            self.headers[SESSION] = message.session

    async def run(self, request: web.BaseRequest) -> None:
        await super().run(request)
        if self._stopping and not self.prepared:
            body = answers.encode(Failure(Trouble(STOPPING, "api_error", code="NotOpenError")))
            await self._send_whole(request, 503, body)

    async def _send_all(self, request: web.BaseRequest) -> None:
        status, body = 200, b""
        try:
            async for told in cast(AsyncIterator[Told], self._source):
                self._route(told)
                if told.reply is not None:
                    created = self._message.ts // 1000
                    body = answers.encode(Completion.of(answer_of(told.reply), created, self._asked.model))
        except Exception as error:
            status, body = failure(error)
        await self._send_whole(request, status, body)

    def _route(self, told: Told) -> None:
        """Who makes it."""
        if told.worker:
            self.headers[ROUTED] = told.worker if told.slot is None else f"{told.worker}/{told.slot}"

    async def _send_whole(self, request: web.BaseRequest, status: int, body: bytes) -> None:
        self.set_status(status)
        self.headers.update(answers.JSON)
        self.content_length = len(body)
        with suppress(GoneError):
            await self._begin(request)
            await self._write(body)


class Stream(Whole):
    """Chunks, as parts of the reply are committed; the headers leave with the first of them, so that a refusal has a
    status that says so."""

    async def _send_all(self, request: web.BaseRequest) -> None:
        text = ""
        with suppress(GoneError):
            try:
                async for told in cast(AsyncIterator[Told], self._in_time()):
                    if told.reply is not None:
                        answer_of(told.reply)
                    if not self.prepared:
                        self._route(told)
                        await self._begin(request)
                        await self._chunk(Delta("assistant", ""))
                    whole = text[: told.at] + told.text
                    if len(whole) > len(text):
                        await self._chunk(Delta(content=whole[len(text) :]))
                        text = whole
                    if told.reply is not None:
                        await self._end(told.reply)
            except GoneError:
                raise
            except Exception as error:
                status, body = failure(error)
                if self.prepared:
                    await self._write(b"data: %b\n\n" % body)
                else:
                    await self._send_whole(request, status, body)

    async def _beat(self) -> None:
        if self.prepared:
            await super()._beat()

    async def _end(self, reply: Reply) -> None:
        last = self._made([ChunkChoice(0, Delta(), FINISHES[reply.finish or "stop"])])
        last.citations, last.source, last.stale = reply.citations, reply.source, reply.stale
        await self._send(last)
        options = self._asked.stream_options
        if options is not None and options.include_usage:
            spent = self._made([])
            spent.usage = Spent.of(reply.usage or Usage())
            await self._send(spent)
        await self._write(b"data: [DONE]\n\n")

    async def _chunk(self, delta: Delta) -> None:
        await self._send(self._made([ChunkChoice(0, delta)]))

    def _made(self, choices: list[ChunkChoice]) -> Chunk:
        message, model = self._message, self._asked.model
        return Chunk(id_of(message.id), "chat.completion.chunk", message.ts // 1000, model, choices)

    async def _send(self, chunk: Chunk) -> None:
        await self._write(b"data: %b\n\n" % answers.encode(chunk))
