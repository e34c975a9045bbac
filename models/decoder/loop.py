"""The decoder's loop: each tick one chunk of one context, and one token for everybody who has theirs computed."""

from __future__ import annotations

import logging
import queue
import time
from asyncio import AbstractEventLoop
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np

from core.errors import GenerationError, HomunculusError
from models.decoder.blocks import Blocks
from models.decoder.figures import Figures, Tick
from models.decoder.grammar import Grammars
from models.decoder.keeper import Keeper
from models.decoder.network import NICE, Floats, Slab
from models.decoder.proving import chunk_of
from models.decoder.resident import Resident
from models.decoder.rotation import Rotation
from models.decoder.schedule import Waiting, next_prefill
from models.decoder.tokenizer import Tokenizer
from models.decoder.turn import Finish, Piece, Usage
from models.decoder.work import Work
from models.nice import step_back

log = logging.getLogger(__name__)

REST: Final = 2
"""Tokens at the end of a context that are always computed: logits come from the last, and see chunk_of()."""
WORTH_MOVING: Final = 16
"""Tokens that a reply may still get for which a hole in the batch is filled: a move costs what a few rows do."""

Delivery = tuple[Work, Piece | None, Usage | Exception | None]


class Loop:
    """Runs on the decoder's thread, which owns everything here; others put commands."""

    def __init__(
        self,
        slab: Slab,
        tokenizer: Tokenizer,
        grammars: Grammars,
        identity: str,
        blocks: Blocks | None,
        budget: int,
        rotation: Rotation | None,
    ) -> None:
        """budget: tokens of KV in memory."""
        self.figures: Final = Figures()
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._slab, self._tokenizer, self._grammars, self._budget = slab, tokenizer, grammars, budget
        self._keeper = Keeper(slab, blocks, identity, self.figures, rotation)
        self._waiting = Waiting()
        self._active: list[Work] = []
        self._deliveries: list[Delivery] = []
        self._tick = 0
        self._closed = False

    def put(self, command: Callable[[], None]) -> None:
        """Has the thread call it between two ticks."""
        self._commands.put(command)

    def run(self) -> None:
        """Until close()."""
        step_back(NICE)
        while not self._closed:
            try:
                self._obey()
                if not self._closed:
                    self._turn()
            except Exception as error:  # of a store of blocks, say: nobody may wait for ever
                log.exception("a tick of a decoder failed; all that was asked of it ends")
                for work in [*self._active, *self._waiting]:
                    self._fail(work, error)
            self._deliver()
        self._slab.close()

    # -- commands, on the thread ---------------------------------------------------------------------------------------

    def submit(self, work: Work) -> None:
        """A turn waits for its slot."""
        self._waiting.add(work)

    def cancel(self, work: Work) -> None:
        """Ends a turn, wherever it is."""
        if work in self._active or any(work is waiting for waiting in self._waiting):
            self._end(work, Finish.CANCELLED)

    def forget(self, session: str) -> None:
        """Drops all that is kept of a session."""
        for work in [*self._waiting, *self._active]:
            if work.turn.session == session:
                self._end(work, Finish.CANCELLED)
        self._keeper.forget(session)

    def save(self, session: str) -> int:
        """Keeps an idle session's whole blocks. Returns their tokens."""
        return self._keeper.save(session)

    def close(self) -> None:
        """Ends everything."""
        for work in [*self._waiting, *self._active]:
            self._end(work, Finish.CANCELLED)
        self._closed = True

    @property
    def quiet(self) -> bool:
        """Nothing is being made."""
        return not self._active and not len(self._waiting)

    def held(self, session: str) -> tuple[int, ...]:
        """Tokens in the session's slot."""
        resident = self._keeper.residents.get(session)
        return () if resident is None else tuple(resident.tokens.tolist())

    def slot(self, session: str) -> int | None:
        """The session's slot; from any thread."""
        resident = self._keeper.residents.get(session)
        return None if resident is None else resident.slot

    # -- a tick --------------------------------------------------------------------------------------------------------

    def _obey(self) -> None:
        """Does what was asked for; where nothing else is to be done, waits for it, or saves what is idle meanwhile."""
        while self.quiet and self._commands.empty() and not self._deliveries:
            if not self._keeper.save_one():
                self._commands.get()()
                break
        with suppress(queue.Empty):
            while not self._closed:
                self._commands.get_nowait()()

    def _turn(self) -> None:
        self._tick += 1
        for work in [*self._waiting, *self._active]:
            if work.overdue:
                self._end(work, Finish.DEADLINE)
        self._admit()
        began = time.perf_counter()
        decoding = [work for work in self._active if work.computed]
        prefilled = self._prefill()
        rows = self._decode(decoding)
        figures = self.figures
        if prefilled or rows:
            figures.ticks.append(Tick(prefilled, len(decoding), rows, time.perf_counter() - began))
        for work in self._active[:]:
            if work.finish is not None:
                self._end(work, work.finish)
            elif (piece := work.piece()) is not None:
                self._deliveries.append((work, piece, None))
        figures.waiting, figures.active = len(self._waiting), len(self._active)
        figures.resident = len(self._keeper.residents)
        figures.held_tokens = sum(map(len, self._keeper.residents.values()))

    def _admit(self) -> None:
        """Gives slots to those who wait, in their order: nobody passes one for whom there is no room yet."""
        for work in self._waiting.candidates({work.turn.session for work in self._active}):
            need = min(len(work.context) + work.limit - len(work.turn.given), self._slab.window)
            reserved = sum(min(len(other.context) + other.limit, self._slab.window) for other in self._active)
            if self._active and reserved + need > self._budget:
                return
            resident = self._keeper.room_for(work, max(0, self._budget - reserved - need), self._tick)
            if resident is None:
                return
            self._waiting.remove(work)
            self._waiting.served(work.turn.session, self._tick)
            self._begin(work, resident)

    def _begin(self, work: Work, resident: Resident) -> None:
        self._active.append(work)
        try:
            schema = work.turn.sampling.schema
            grammar = None if schema is None else self._grammars.of(schema)
            work.begin(resident, self._tokenizer.stream(), grammar)
            work.cached = self._keeper.reuse(resident, work, len(work.context) - REST)
        except HomunculusError as error:
            self._fail(work, error)

    def _prefill(self) -> int:
        """One chunk of one context. Returns its tokens."""
        work = next_prefill(work for work in self._active if work.finish is None and not work.computed)
        if work is None:
            return 0
        resident = work.resident
        assert resident is not None
        work.served = self._tick
        began = time.perf_counter()
        copied = self._keeper.copy(resident, work.context, len(work.context) - REST)
        work.copied += copied
        work.cached += copied
        part = work.context[len(resident) :]
        part = part[: chunk_of(len(part))]
        last = len(resident) + len(part) == len(work.context)
        try:
            logits = self._slab.run(
                part[None].astype(np.int64), resident.slot, [len(part) - 1] if last else [], [work.turn.adapter]
            )
            resident.extend(part)
            if last:
                work.take(logits[0])
        except Exception as error:
            self._fail(work, error)
            return 0
        self.figures.prefilled_tokens += len(part)
        self.figures.prefill_s += time.perf_counter() - began
        return len(part)

    def _decode(self, works: list[Work]) -> int:
        """The next token for all of them, in one batch. Returns its rows."""
        works = [work for work in works if work.finish is None and work in self._active]
        if not works:
            return 0
        began = time.perf_counter()
        slots = self._close_ranks(works)
        first, count = min(slots), max(slots) - min(slots) + 1
        tokens = np.zeros((count, 1), np.int64)
        for slot, work in zip(slots, works, strict=True):
            tokens[slot - first] = work.tokens[-1]
        # A row that nobody reads has the first's: a batch of one adapter is cheaper.
        adapters = [works[0].turn.adapter] * count
        for slot, work in zip(slots, works, strict=True):
            adapters[slot - first] = work.turn.adapter
        before = self._slab.lengths.copy()
        try:
            logits = self._slab.run(tokens, first, [slot - first for slot in slots], adapters)
        except Exception as error:
            for work in works:
                self._fail(work, error)
            return 0
        for idle in set(range(first, first + count)) - set(slots):
            self._slab.lengths[idle] = before[idle]
        for row, work in zip(logits, works, strict=True):
            self._take(work, row)
        self.figures.decoded_tokens += len(works)
        self.figures.decode_s += time.perf_counter() - began
        return count

    def _take(self, work: Work, logits: Floats) -> None:
        assert work.resident is not None
        work.resident.extend(work.tokens[-1:])
        try:
            work.take(logits)
        except Exception as error:
            self._fail(work, error)

    def _close_ranks(self, works: list[Work]) -> list[int]:
        """Moves sessions into idle slots between others', where it pays. Returns the works' slots."""
        residents = [work.resident for work in works if work.resident is not None]
        taken = {work.resident.slot for work in self._active if work.resident is not None}
        for work in sorted(works, key=lambda work: -work.resident.slot if work.resident else 0):
            resident = work.resident
            assert resident is not None
            low = min(other.slot for other in residents)
            hole = next((slot for slot in range(low, resident.slot) if slot not in taken), None)
            if hole is None or work.limit - len(work.tokens) < WORTH_MOVING:
                break
            taken = (taken - {resident.slot}) | {hole}
            self._keeper.move(resident, hole)
        return [resident.slot for resident in residents]

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _end(self, work: Work, finish: Finish) -> None:
        work.finish = work.finish or finish
        self._leave(work)
        usage, figures = work.usage(), self.figures
        figures.turns += 1
        figures.cancelled += usage.finish is Finish.CANCELLED
        figures.late += usage.finish is Finish.DEADLINE
        figures.prompt_tokens += usage.prompt
        figures.cached_tokens += usage.cached
        figures.copied_tokens += usage.copied
        figures.restored_tokens += usage.restored
        figures.shifted_tokens += usage.shifted
        self._deliveries.append((work, work.piece(), usage))

    def _fail(self, work: Work, error: Exception) -> None:
        """What the session has in its slot may be half of something: it goes."""
        self._leave(work)
        if work.resident is not None:
            self._keeper.drop(work.resident)
        self.figures.turns += 1
        self.figures.failed += 1
        if not isinstance(error, HomunculusError):
            log.warning("a reply for a context of %d tokens failed: %r", len(work.context), error)
            error = GenerationError(f"the model failed: {error}")
        self._deliveries.append((work, None, error))

    def _leave(self, work: Work) -> None:
        if work in self._active:
            self._active.remove(work)
        else:
            self._waiting.remove(work)
        if work.resident is not None:
            work.resident.work = None
            work.resident.used = self._tick

    def _deliver(self) -> None:
        """Hands over what the tick has brought, one call for each event loop."""
        by_loop: dict[AbstractEventLoop, list[Delivery]] = defaultdict(list)
        for delivery in self._deliveries:
            by_loop[delivery[0].loop].append(delivery)
        self._deliveries = []
        for loop, deliveries in by_loop.items():
            try:
                loop.call_soon_threadsafe(_hand_over, deliveries)
            except RuntimeError:  # the loop is closed: nobody waits for these any more
                for work in [work for work, _, outcome in deliveries if outcome is None]:
                    self.cancel(work)
                self._deliveries = [one for one in self._deliveries if one[0].loop is not loop]


def _hand_over(deliveries: list[Delivery]) -> None:
    for work, piece, outcome in deliveries:
        if piece is not None:
            work.generation.put(piece)
        if outcome is not None:
            work.generation.end(outcome)
