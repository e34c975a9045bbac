"""One turn in the making: its choices so far, its text, and how it ends."""

from __future__ import annotations

import asyncio
import secrets
import time

import numpy as np

from models.decoder.generation import Generation
from models.decoder.grammar import Grammar
from models.decoder.network import Floats
from models.decoder.resident import Resident, Tokens
from models.decoder.sampler import Sampler
from models.decoder.stops import Stops
from models.decoder.tokenizer import TextStream
from models.decoder.turn import Finish, Piece, Turn, Usage


class Work:
    """Made on the caller's loop, then the decoder's thread's own."""

    def __init__(self, generation: Generation, number: int, window: int, ends: frozenset[int]) -> None:
        turn = generation.turn
        self.generation = generation
        self.turn: Turn = turn
        self.number = number
        """Of its submission."""
        self.loop = asyncio.get_running_loop()
        self.context: Tokens = np.array(turn.tokens + turn.given, np.int32)
        self.limit = min(turn.sampling.max_tokens, window - len(turn.tokens))
        """New tokens at most."""
        self.seed = secrets.randbits(62) if turn.sampling.seed is None else turn.sampling.seed
        self.tokens: list[int] = []
        """Of the reply, those given included."""
        self.finish: Finish | None = None
        self.resident: Resident | None = None
        self.cached = self.copied = self.restored = self.shifted = 0
        self.served = 0
        """Number of the tick that prefilled for it last."""
        self._ends = ends
        self._arrived = time.perf_counter()
        self._until = self._arrived + turn.within_s if turn.within_s is not None else None
        self._began: float | None = None
        self._first: float | None = None
        self._fresh: list[int] = []
        self._text = ""
        self._stops = Stops(turn.sampling.stop)

    def begin(self, resident: Resident, stream: TextStream, grammar: Grammar | None) -> None:
        """It has a slot. What is given may end it at once. Raises GenerationError for given tokens that the grammar
        doesn't know."""
        self.resident, resident.work = resident, self
        self._began = time.perf_counter()
        self._stream, self._grammar = stream, grammar
        self._sampler = Sampler(self.turn.sampling, self.seed, self.turn.tokens)
        for token in self.turn.given:
            self._accept(token)
            if self.finish is not None:
                self._stops.rest()  # was told with the last of them
                break
        self._fresh, self._text = [], ""

    @property
    def computed(self) -> bool:
        """Whether the whole context has been, so that each further token is decoded."""
        return len(self.tokens) > len(self.turn.given)

    @property
    def overdue(self) -> bool:
        """Whether its time is up."""
        return self._until is not None and time.perf_counter() > self._until

    def take(self, logits: Floats) -> None:
        """Chooses the next token. Raises GenerationError where that can't be done."""
        if self._grammar is not None:
            self._grammar.forbid(logits)
        token = self._sampler.choose(logits, len(self.tokens))
        if self._first is None:
            self._first = time.perf_counter()
        self._accept(token)

    def _accept(self, token: int) -> None:
        self.tokens.append(token)
        self._fresh.append(token)
        self._sampler.saw(token)
        if token in self._ends:
            self.finish = Finish.STOP
            return
        if self._grammar is not None:
            self._grammar.accept(token)
        self._text += self._stops.push(self._stream.push(token))
        if self._stops.met or (self._grammar is not None and self._grammar.complete):
            self.finish = Finish.STOP
        elif len(self.tokens) >= self.limit:
            self.finish = Finish.LENGTH

    def piece(self) -> Piece | None:
        """What is new since the last one."""
        if self.finish is not None:
            self._text += self._stops.rest()
        if not self._fresh and not self._text:
            return None
        piece = Piece(tuple(self._fresh), self._text)
        self._fresh, self._text = [], ""
        return piece

    def usage(self) -> Usage:
        """At the end."""
        now = time.perf_counter()
        assert self.finish is not None
        return Usage(
            finish=self.finish,
            prompt=len(self.turn.tokens),
            cached=min(self.cached, len(self.turn.tokens)),
            new=len(self.tokens),
            seed=self.seed,
            queued_s=(self._began or now) - self._arrived,
            first_s=(self._first or now) - self._arrived,
            total_s=now - self._arrived,
            restored=self.restored,
            copied=self.copied,
            shifted=self.shifted,
        )
