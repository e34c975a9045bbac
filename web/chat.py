"""POST /v1/chat/completions: a message goes through Kafka, its reply comes back from whoever has the session."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Final

import msgspec
from aiohttp import web
from aiokafka.errors import KafkaError

from core.errors import UnknownModelError
from core.messages import Message
from core.topics import MESSAGES
from engine.app import App
from engine.codec import codec_of
from web import answers
from web.answering import ROUTED, SESSION, Stream, Whole, failure
from web.completions import Completion, CompletionRequest, Failure, ModelCard, ModelCards
from web.errors import MalformedError, NotOpenError
from web.events import Events
from web.operations import Operation, operation
from web.replies import LONGEST, Replies, Told

ONCE: Final = "Idempotency-Key"
"""Header of a request: the same key in the same session gets the same answer for an hour."""
TENANT: Final = "X-Tenant"
"""Header of a request: on whose behalf it is; what others know it isn't told."""


class Chat:
    """OpenAI's routes."""

    def __init__(self, app: App, replies: Replies, events: Events) -> None:
        self._app = app
        self._replies = replies
        self._events = events
        self._encode = codec_of(Message).encode

    def routes(self) -> list[web.RouteDef]:
        """POST /v1/chat/completions and GET /v1/models."""
        return [web.post("/v1/chat/completions", self.complete), web.get("/v1/models", self.models)]

    @operation(Operation(gives=ModelCards))
    async def models(self, request: web.Request) -> web.Response:
        """The language models that answer, in OpenAI's form."""
        live = self._app.engine.models.decoders()
        cards = [ModelCard(name, "model", one.course.since // 1000, "homunculus") for name, one in live.items()]
        return answers.json(ModelCards("list", cards))

    @operation(
        Operation(
            gives=Completion,
            takes=CompletionRequest,
            also=dict.fromkeys((400, 404, 429, 500, 503), Failure),
            headers={
                SESSION: "the session: send it back as this header to go on with what the session holds",
                ROUTED: "WORKER/SLOT: who made the answer, and where the session's attention state is",
            },
        )
    )
    async def complete(self, request: web.Request) -> web.StreamResponse:
        """The reply to the last of `messages`, in OpenAI's form; with `stream` as server-sent events.

        The session is named by the header X-Session, else by `user`; without either it is a new one. The messages
        before the last become what the session holds; one alone, with X-Session, goes on with what it holds.
        """
        try:
            asked = await self._read(request)
            message = self._message(request, asked)
            self._events.check()
            await self._publish(message)
        except Exception as error:
            status, body = failure(error)
            return web.Response(body=body, status=status, headers=answers.JSON)
        source = self._told(request, message, in_parts=bool(asked.stream))
        kind = Stream if asked.stream else Whole
        return kind(source, self._events.opened, asked, message)

    async def _read(self, request: web.Request) -> CompletionRequest:
        if request.content_type != "application/json":
            raise MalformedError("send the request as JSON, with the header `Content-Type: application/json`")
        raw, limit = bytearray(), int(self._app.settings.max_record)
        async for piece in request.content.iter_any():
            raw += piece
            if len(raw) > limit:
                raise MalformedError(f"the body has more than {limit} bytes (HOMUNCULUS_MAX_RECORD)")
        try:
            return msgspec.json.decode(raw, type=CompletionRequest)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise MalformedError(f"the body is not what this route takes: {error}") from None

    def _message(self, request: web.Request, asked: CompletionRequest) -> Message:
        named = request.headers.get(SESSION)
        session = named or asked.user or f"web-{uuid.uuid4().hex}"
        once, tenant = request.headers.get(ONCE), request.headers.get(TENANT) or None
        if max(len(session), len(once or ""), len(tenant or "")) > LONGEST:
            raise MalformedError(f"a session, an idempotency key or a tenant has {LONGEST} characters at most")
        models = self._app.engine.models
        if asked.model not in models.deployed():
            raise UnknownModelError(asked.model, list(models.decoders()))
        said = [spoken.said() for spoken in asked.messages]
        last = said[-1]
        if last.role not in {"user", "tool"}:
            raise MalformedError("the last message is the user's: it is what is answered")
        return Message(
            id=_id(once, tenant),
            session=session,
            ts=int(time.time() * 1e3),
            text=last.text,
            role=last.role,
            user=asked.user,
            tenant=tenant,
            attributes=dict(asked.metadata) if asked.metadata else None,
            model=asked.model,
            options=asked.generation(),
            history=None if named and len(said) == 1 else said[:-1],
            knowledge=asked.knowledge,
            tags=asked.tags,
        )

    async def _publish(self, message: Message) -> None:
        if not self._app.engine.started_consuming:
            raise NotOpenError("the worker has not reached its broker yet: ask again")
        if (size := len(self._encode(message))) > self._app.settings.max_record:
            raise MalformedError(f"the messages have {size} bytes together, which is more than a record may have")
        await self._app.publisher.publish(MESSAGES, message.session, message)

    async def _told(self, request: web.Request, message: Message, *, in_parts: bool) -> AsyncGenerator[Told, None]:
        """Until the final reply. Who leaves before has it stopped."""
        over = False
        try:
            following = self._replies.follow(request, message, lambda: self._publish(message), in_parts=in_parts)
            async with aclosing(following) as states:
                async for told in states:
                    over = told.reply is not None
                    yield told
        finally:
            if not over and not self._events.stopped:
                wish = Message(uuid.uuid4().hex, message.session, int(time.time() * 1e3), cancel=message.id)
                with suppress(KafkaError):
                    await self._app.publisher.publish(MESSAGES, message.session, wish)


def _id(once: str | None, tenant: str | None) -> str:
    """The message's: one key of two tenants is two."""
    if once is None:
        return uuid.uuid4().hex
    return once if tenant is None else hashlib.sha256(msgspec.json.encode([tenant, once])).hexdigest()
