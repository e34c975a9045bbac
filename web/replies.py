"""A reply while it is made, from whichever worker makes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Annotated, Final
from urllib.parse import urlencode

import msgspec
from aiohttp import web
from msgspec import Meta

from core.errors import KnowledgeAwayError
from core.messages import Message, Reply
from engine.app import App
from engine.table import Shard
from tables.answers import Answer, answers
from web.errors import MalformedError, NotOpenError, OwnerError, UnreachableError
from web.events import Events
from web.operations import Operation, Parameter, operation
from web.owners import Owners
from web.parameters import parameters

PATH: Final = "/replies"
AGAIN_S: Final = 0.2
"""Until the owner of a partition that moves is looked for again."""
SEND_AGAIN_S: Final = 1.0
"""Until a message whose reply still cites what is gone is sent once more: the worker that answers it may hear of that
later than this one."""
PATIENCE_S: Final = 600.0
"""Seconds without anything new after which a reply is given up: longer than any that is made takes."""

SendAgain = Callable[[], Awaitable[None]]
"""Publishes the message whose reply is followed."""

LONGEST: Final = 1000
"""Characters of a session, a message's id, a key or a tenant."""
SESSION: Final = Annotated[str, Meta(min_length=1, max_length=LONGEST)]


class Told(msgspec.Struct, omit_defaults=True):
    """What is new of a reply. What was told before is repeated where somebody connects anew."""

    at: int
    """Where in the reply's text this goes on."""
    text: str = ""
    worker: str = ""
    """Who makes it."""
    slot: int | None = None
    """Where the worker has the session's attention state."""
    reply: Reply | None = None
    """The final one: nothing follows."""


_decode = msgspec.json.Decoder(Told).decode


class Replies:
    """Follows the table `answers`: a reply is shown as it is committed."""

    def __init__(self, app: App, owners: Owners, events: Events) -> None:
        self._app = app
        self._owners = owners
        self._events = events

    def routes(self) -> list[web.RouteDef]:
        """GET /replies."""
        return [web.get(PATH, self.watch)]

    @operation(
        Operation(
            gives=Told,
            media="text/event-stream",
            parameters=(
                Parameter("session", SESSION, "the message's session"),
                Parameter("message", SESSION, "the message's id"),
            ),
        )
    )
    async def watch(self, request: web.Request) -> web.StreamResponse:
        """The reply to one message as server-sent events, from its beginning; it may be sent later. Ends with an event
        `end` after the final reply, when its partition moves, or the worker stops: connect again unless it was final.
        """
        given = parameters(request, "session", "message")
        session, message = given.get("session", ""), given.get("message", "")
        if not session or not message:
            raise MalformedError("name the session and the message: ?session=...&message=...")
        if max(len(session), len(message)) > LONGEST:
            raise MalformedError(f"a session and a message's id have {LONGEST} characters at most")
        partition = self._owners.partition(session.encode())
        shard = self._owners.here(answers.name, partition)
        if shard is None:
            return await self._owners.follow(request, partition, self._events)
        return self._events.stream(self._here(shard, partition, answers.place(session, message)))

    async def follow(
        self, request: web.Request, message: Message, send_again: SendAgain, *, in_parts: bool
    ) -> AsyncGenerator[Told, None]:
        """All that is told of a message's reply until it is final, wherever its partition goes meanwhile. One that
        cites what is gone isn't told, be it of before or made a moment ago: the message is sent again, and gets
        another. in_parts: what comes is told on at once, so a reply that has begun is told to its end. Raises
        TimeoutError when nothing has been for long."""
        partition = self._owners.partition(message.session.encode())
        news, sent, begun = time.monotonic(), -SEND_AGAIN_S, False
        while time.monotonic() - news < PATIENCE_S:
            try:
                async with aclosing(self._once(request, partition, message.session, message.id)) as states:
                    async for told in states:
                        if told.reply is not None and not begun and not await self._stands(told.reply, message.tenant):
                            if time.monotonic() - sent >= SEND_AGAIN_S:
                                sent = time.monotonic()
                                await send_again()
                            break
                        news, begun = time.monotonic(), in_parts and (begun or bool(told.text))
                        yield told
                        if told.reply is not None:
                            return
            except (NotOpenError, UnreachableError, OwnerError, KnowledgeAwayError):
                pass  # it moves, or whoever had it is gone; or nobody here can say yet what there is
            await asyncio.sleep(AGAIN_S)
        raise TimeoutError(f"nothing was heard of the reply for {PATIENCE_S:g} s")

    async def _stands(self, reply: Reply, tenant: str | None) -> bool:
        passages = {one.passage for one in reply.citations}
        return not passages or await self._app.engine.knowledge.there(tenant, passages) == passages

    async def _once(
        self, request: web.Request, partition: int, session: str, message: str
    ) -> AsyncGenerator[Told, None]:
        """From whoever has the partition now, for as long as that is so."""
        shard = self._owners.here(answers.name, partition)
        if shard is not None:
            async with aclosing(self._here(shard, partition, answers.place(session, message))) as states:
                async for told in states:
                    yield told
            return
        path = f"{PATH}?{urlencode({'session': session, 'message': message})}"
        async with aclosing(await self._owners.listen(request, partition, path)) as relay:
            async for raw in relay:
                yield _decode(raw)

    async def _here(self, shard: Shard, partition: int, place: str) -> AsyncGenerator[Told, None]:
        key, at = answers.encode_key(place), 0
        with self._app.engine.watches.on(partition, answers.name, key) as watch:
            if self._owners.here(answers.name, partition) is not shard:
                return
            raw = shard.stored(key)
            answer = None if raw is None else answers.decode(raw)
            if answer is not None:
                yield _told(answer, 0)
                at = len(answer.text)
            if answer is not None and answer.reply is not None:
                return
            async for change, _ in watch:
                if change is None:
                    continue
                answer = answers.decode(change)
                yield _told(answer, min(at, len(answer.text)))
                at = len(answer.text)
                if answer.reply is not None:
                    return


def _told(answer: Answer, at: int) -> Told:
    slot = answer.slot if answer.slot >= 0 else None
    return Told(at, answer.text[at:], answer.worker, slot, answer.reply)
