"""`faust -A app chat`: a person at a terminal talks with the language model, over the same topics as everybody."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from faust.cli.base import argument, option

from cli.command import OperatorCommand, offering
from cli.erasing import key_of
from cli.reach import reach
from cli.report import Report
from core.errors import SettingsError
from core.messages import Generation, Message, Reply
from core.topics import MESSAGES, REPLIES
from engine import rights
from engine.admin import TopicAdmin
from engine.codec import codec_of
from engine.connection import Connection
from engine.publisher import partition_of

SILENCE_S: Final = 600.0
"""Without a word of the reply."""


class Talk:
    """One session, as somebody outside of the worker has it."""

    def __init__(
        self, session: str, model: str | None, producer: AIOKafkaProducer, consumer: AIOKafkaConsumer, topic: str
    ) -> None:
        self.session = session
        self._model = model
        self._producer = producer
        self._consumer = consumer
        self._topic = topic
        self._encode, self._decode = codec_of(Message).encode, codec_of(Reply).decode

    async def ask(self, text: str, options: Generation) -> AsyncIterator[Reply]:
        """The parts of the reply, then the final one. Who stops before has it stopped. Raises TimeoutError."""
        message = Message(uuid.uuid4().hex, self.session, _now(), text, model=self._model, options=options)
        await self._send(message)
        final = False
        try:
            while not final:
                async with asyncio.timeout(SILENCE_S):
                    record = await self._consumer.getone()
                reply = self._decode(record.value or b"")
                if reply.message_id == message.id:
                    final = reply.final
                    yield reply
        finally:
            if not final:
                await self._send(Message(uuid.uuid4().hex, self.session, _now(), cancel=message.id))

    async def _send(self, message: Message) -> None:
        await self._producer.send_and_wait(self._topic, self._encode(message), key=self.session.encode())


@asynccontextmanager
async def talking(connection: Connection, session: str, model: str | None) -> AsyncIterator[Talk]:
    """Reads what comes from now on. Raises SettingsError where the broker has no such topics, or we lack a right."""
    prefix = connection.settings.topic_prefix
    messages, replies = prefix + MESSAGES.name, prefix + REPLIES.name
    needed = {messages: frozenset({rights.WRITE}), replies: frozenset({rights.READ})}
    await rights.check(connection, rights.Needed(needed))
    async with TopicAdmin(connection.bootstrap, connection.security) as admin:
        shapes = await admin.shapes()
    if missing := [name for name in (messages, replies) if name not in shapes]:
        raise SettingsError(f"{connection.bootstrap} has no topic {missing[0]}: start a worker first")
    told = TopicPartition(replies, partition_of(session.encode(), shapes[replies].partitions))
    producer = AIOKafkaProducer(**connection.options, acks="all", enable_idempotence=connection.idempotent)
    async with AIOKafkaConsumer(**connection.options, isolation_level=connection.isolation) as consumer:
        consumer.assign([told])
        consumer.seek(told, (await consumer.end_offsets([told]))[told])
        async with producer:
            yield Talk(session, model, producer, consumer, messages)


class Chat(OperatorCommand):
    """Talk with the language model. Without TEXT: line by line, until the input ends (Ctrl-D).

    A named session goes on where it was, on whichever worker.
    """

    options = offering(
        argument("text", required=False),
        option("--session", default=None, help="Default: a new one."),
        option("--model", default=None, help="Default: the only language model that is deployed."),
        option("--max-tokens", type=int, default=None, help="Of a reply. Default: what the worker allows."),
    )

    async def answer(self, text: str | None = None, **options: Any) -> Report:
        """Raises UsageError for what can't be a session."""
        session = options["session"] or f"terminal-{uuid.uuid4().hex[:8]}"
        key_of(session)
        generation = Generation(max_tokens=options["max_tokens"])
        async with talking(await reach(self.ours.settings), session, options["model"]) as talk:
            if text is not None:
                return await self._once(talk, text, generation)
            self._show(f"session {session}; an empty line is none, Ctrl-D ends\n")
            while (line := await asyncio.to_thread(_line)) is not None:
                if line.strip():
                    await self._once(talk, line, generation)
        return Report({"session": session})

    async def _once(self, talk: Talk, text: str, options: Generation) -> Report:
        """One turn, shown as it comes."""
        reply: Reply | None = None
        async for reply in talk.ask(text, options):
            if not reply.final or reply.seq == 0:  # what was told in parts isn't told again
                self._show(reply.text)
        assert reply is not None
        usage = reply.usage
        note = "" if reply.why is None else f" [{reply.finish}: {reply.why}]"
        if usage is not None and usage.prompt_tokens:
            known = f"{usage.prompt_tokens} tokens, {usage.cached_tokens} of them known"
            note += f" [{known}; {usage.completion_tokens} new]"
        self._show(f"{note}\n")
        for one in reply.citations:
            self._show(f"  [{one.number}] {one.title or one.document}, {one.url or one.passage}\n")
        document = {"session": talk.session, "text": reply.text, "finish": reply.finish, "why": reply.why}
        document["citations"] = msgspec.to_builtins(reply.citations)
        return Report(document, ok=reply.finish != "refused")

    def _show(self, text: str) -> None:
        if not self.json:
            sys.stdout.write(text)
            sys.stdout.flush()


def _line() -> str | None:
    """What a person types; None at the end."""
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None


def _now() -> int:
    return int(time.time() * 1e3)
