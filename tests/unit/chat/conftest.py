"""A conversation in memory: the real agent, tables and commits, and a model that says what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from agents.chat import chat
from core.messages import Message, Reply
from core.topics import MESSAGES, REPLIES
from engine.testing import InMemory, in_memory
from tables.answers import answers
from tables.contexts import Context, contexts
from tables.retrievals import retrievals
from tables.reusable import reusable
from tables.similar import similar
from tests.unit.chat.standin import StandIn, live

TABLES = (contexts, answers, reusable, similar, retrievals)
TS = 1_764_374_400_000


class Talk:
    """What a test says, and what comes of it."""

    def __init__(self, trial: InMemory, model: StandIn | None = None) -> None:
        self.trial = trial
        self._model = model
        self._said = 0

    @property
    def model(self) -> StandIn:
        """The stand-in, where it isn't a real one."""
        assert self._model is not None
        return self._model

    def message(self, session: str, text: str, **more: Any) -> Message:
        """The next message: each is a second later than the one before."""
        self._said += 1
        return Message(
            **{"id": f"m{self._said}", "session": session, "ts": TS + 1000 * self._said, "text": text, **more}
        )

    async def say(self, session: str, text: str, **more: Any) -> Message:
        """Sends it."""
        message = self.message(session, text, **more)
        await self.trial.send(MESSAGES, [message])
        return message

    async def ask(self, session: str, text: str, **more: Any) -> Reply:
        """Sends it, and waits for the final reply."""
        message = await self.say(session, text, **more)
        await self.trial.settle()
        return self.final(message.id)

    def replies(self, message_id: str | None = None) -> list[Reply]:
        """What is committed, of one message or all."""
        told = [one.value for one in self.trial.outputs(REPLIES)]
        return [reply for reply in told if message_id in (None, reply.message_id)]

    def finals(self) -> dict[str, list[Reply]]:
        """Message -> its final replies."""
        found: dict[str, list[Reply]] = {}
        for reply in self.replies():
            if reply.final:
                found.setdefault(reply.message_id, []).append(reply)
        return found

    def final(self, message_id: str) -> Reply:
        """The one final reply of a message."""
        [reply] = self.finals()[message_id]
        return reply

    def context(self, session: str) -> Context | None:
        """What is committed of a session."""
        return self.trial.value(contexts, session)

    async def until(self, condition: Callable[[], Any], *, commits: bool = True) -> None:
        """Commits until it holds."""
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.001)
                if commits:
                    await self.trial.commit()

    def text(self, message_id: str) -> str:
        """What parts have told of a reply, each once."""
        parts = {reply.seq: reply.text for reply in self.replies(message_id) if not reply.final}
        return "".join(parts[seq] for seq in sorted(parts))

    async def crash(self) -> None:
        """And what wasn't committed comes again."""
        self.model.close()
        await self.trial.crash()
        await self.trial.work(MESSAGES)


@asynccontextmanager
async def talking(model: StandIn | None = None, **settings: Any) -> AsyncIterator[Talk]:
    """A worker's chat, without a worker."""
    async with in_memory([chat], TABLES, **settings) as trial:
        model = model or StandIn()
        live(trial.models, model)
        yield Talk(trial, model)
        model.close()
