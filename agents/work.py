"""What a model is asked for one message."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agents.prompts import Draft
from agents.room import Room
from agents.speakers import Speaker
from core.errors import OverloadedError, TaskError
from core.messages import Message
from engine.batch import Slice
from models.decoder.generation import Generation
from models.decoder.turn import Finish as Ended
from models.decoder.turn import Sampling, Turn
from models.decoder.wording import Tokens
from tables.contexts import contexts

AGAIN_S = 0.2
"""Until a full queue is tried again."""


class Work:
    """What a model is asked for one message, so that it can be stopped."""

    def __init__(self, exact: bool, speaker: Speaker, s: Slice[Message], room: Room, message: Message, until: float):
        """exact: whether only what was computed in full precision may be used again. until: monotonic."""
        self._exact = exact
        self.speaker, self.message = speaker, message
        self._s, self._room, self._until = s, room, until
        self._place = (message.session, message.id)

    @asynccontextmanager
    async def under_way(
        self, tokens: Tokens, sampling: Sampling, given: Tokens = (), *, shifts: bool = False, share: float = 1.0
    ) -> AsyncIterator[Generation]:
        """The reply to tokens, which ends with the block. share: of the time that is left. Raises OverloadedError where
        the queue stays full."""
        room, message = self._room, self.message
        turn = Turn(
            session=message.session,
            tokens=tokens,
            sampling=sampling,
            given=given,
            priority=message.priority,
            within_s=share * (self._until - time.monotonic()),
            adapter=self.speaker.adapter,
            exact=self._exact,
            shifts=shifts,
        )
        generation = await _submit(self.speaker, turn, self._until, self._s)
        room.made[self._place] = generation
        if self._place in room.unwanted:
            generation.cancel()
        try:
            yield generation
        except BaseException:
            generation.cancel()
            raise
        finally:
            room.made.pop(self._place, None)

    async def whole(self, tokens: Tokens, sampling: Sampling) -> Generation:
        """A reply that nobody is told of, in half of the time that is left. A wish to stop it is one to stop all."""
        async with self.under_way(tokens, sampling, share=0.5) as generation:
            async for _ in generation:
                if self._s.stale:
                    break
        if self._s.stale:
            raise TaskError(f"partition {self._s.partition} has moved on")
        assert generation.usage is not None
        if generation.usage.finish is Ended.CANCELLED:
            self._room.unwanted.add(self._place)
        return generation

    def keep(self, draft: Draft) -> None:
        """The session's context is this from now on, whatever becomes of the message."""
        with self._s.ahead():
            contexts[self.message.session] = draft.context


async def _submit(speaker: Speaker, turn: Turn, until: float, s: Slice[Message]) -> Generation:
    """Raises OverloadedError where the queue stays full."""
    while True:
        try:
            return speaker.decoder.submit(turn)
        except OverloadedError:
            if time.monotonic() + AGAIN_S > until or s.stale:
                raise
            await asyncio.sleep(AGAIN_S)
