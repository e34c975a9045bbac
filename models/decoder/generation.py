"""A reply while it is made: an async stream for the one who asked, filled by the inference thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from models.decoder.turn import Piece, Turn, Usage


class Generation:
    """Made by Decoder.submit; belongs to the event loop that it was made on.

        generation = decoder.submit(turn)
        async for piece in generation:
            ...
        generation.usage

    Iterating raises what the turn failed of: GenerationError, SamplingError. Who stops iterating should cancel().
    """

    def __init__(self, turn: Turn, cancel: Callable[[Generation], None], ended: Callable[[Generation], None]) -> None:
        self.turn = turn
        self.tokens: list[int] = list(turn.given)
        """All of the reply's tokens so far, those given included."""
        self.text = ""
        """All text so far, without that of the given tokens."""
        self.usage: Usage | None = None
        """There from the end on, before the stream ends; None after a failure."""
        self.ended = asyncio.Event()
        self._cancel, self._on_end = cancel, ended
        self._pieces: deque[Piece] = deque()
        self._error: Exception | None = None
        self._wake = asyncio.Event()

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self.ended.is_set():
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._pieces.popleft()

    async def result(self) -> Usage:
        """Waits for the end; `text` and `tokens` are whole then. Raises as iterating does."""
        async for _ in self:
            pass
        assert self.usage is not None
        return self.usage

    def cancel(self) -> None:
        """Ends the reply as it is, within a tick; its stream ends with finish "cancelled". Twice is as once."""
        self._cancel(self)

    # -- from the decoder, on this generation's loop -------------------------------------------------------------------

    def put(self, piece: Piece) -> None:
        """One more piece."""
        self.tokens += piece.tokens
        self.text += piece.text
        self._pieces.append(piece)
        self._wake.set()

    def end(self, outcome: Usage | Exception) -> None:
        """Nothing follows."""
        if isinstance(outcome, Exception):
            self._error = outcome
        else:
            self.usage = outcome
        self.ended.set()
        self._wake.set()
        self._on_end(self)
