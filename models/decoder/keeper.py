"""Which sessions have a slot, and where the keys and values of the others go and come from."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from models.decoder.blocks import BLOCK, Blocks, Chain, Packing
from models.decoder.figures import Figures
from models.decoder.network import Slab
from models.decoder.resident import Resident, Tokens
from models.decoder.rotation import Rotation

if TYPE_CHECKING:
    from models.decoder.work import Work

log = logging.getLogger(__name__)

WORTH_COPYING: Final = 16
"""Tokens. Fewer are computed as quickly, with the others of their chunk."""


WELL: Final = 4096
"""Tokens that were restored, and that were computed, before their prices are compared."""


class Keeper:
    """Belongs to the decoder's thread."""

    def __init__(
        self, slab: Slab, blocks: Blocks | None, identity: str, figures: Figures, rotation: Rotation | None = None
    ) -> None:
        """rotation: how keys are given another position; without it nothing is shifted."""
        self.residents: Final[dict[str, Resident]] = {}
        """Session -> its slot."""
        self._slab, self._blocks, self._identity, self._figures = slab, blocks, identity, figures
        self._rotation = rotation
        self._packing = Packing(slab)
        self._free = set(range(slab.slots))
        self._measured = 0
        """Tokens restored in figures.restore_s."""

    # -- slots ---------------------------------------------------------------------------------------------------------

    def room_for(self, work: Work, idle_tokens: int, tick: int) -> Resident | None:
        """The turn's session with a slot, its own or one that another must leave; None where all are being used.

        idle_tokens: what idle sessions may hold together from now on.
        """
        session, exact = work.turn.session, work.turn.exact
        resident = self.residents.get(session)
        if resident is None and not self._free and (oldest := self._oldest()) is None:
            return None
        while (others := self._idle(session)) and sum(map(len, others)) > idle_tokens:
            self._evict(min(others, key=lambda other: other.used))
        if resident is None:
            if not self._free:
                oldest = self._oldest()
                assert oldest is not None
                self._evict(oldest)
            slot = min(self._free)
            self._free.remove(slot)
            resident = Resident(session, slot, self._slab.window, self._identity, exact)
            self.residents[session] = resident
        resident.used = tick
        return resident

    def move(self, resident: Resident, slot: int) -> None:
        """Puts a session into another slot; whoever idles there takes its own."""
        self._figures.moved += 1
        other = next((other for other in self.residents.values() if other.slot == slot), None)
        if other is None:
            self._slab.copy(resident.slot, slot, 0, len(resident))
            self._slab.clear(resident.slot)
            self._free.remove(slot)
            self._free.add(resident.slot)
        else:
            self._slab.swap(resident.slot, slot)
            other.slot = resident.slot
        resident.slot = slot

    def drop(self, resident: Resident) -> None:
        """Its keys and values are gone."""
        if self.residents.get(resident.session) is resident:
            del self.residents[resident.session]
            self._slab.clear(resident.slot)
            self._free.add(resident.slot)

    def _idle(self, but: str) -> list[Resident]:
        return [one for one in self.residents.values() if one.work is None and one.session != but]

    def _oldest(self) -> Resident | None:
        return min(self._idle(""), key=lambda one: one.used, default=None)

    def _evict(self, resident: Resident) -> None:
        self._figures.evicted += 1
        self.save(resident.session)
        self.drop(resident)

    # -- what needn't be computed --------------------------------------------------------------------------------------

    def reuse(self, resident: Resident, work: Work, most: int) -> int:
        """Leaves in a slot what a context begins with, and adds what other slots and blocks have of it. Returns how
        many tokens of the context are there then, `most` at most."""
        exact = work.turn.exact
        if exact and resident.rounded:
            self._cut(resident, 0)
        resident.become(exact)
        if work.turn.shifts and not exact:
            self._shift(resident, work.context[:most])
        else:
            self._cut(resident, resident.true)
        self._cut(resident, max(0, min(resident.common(work.context), most)))
        work.shifted = len(resident) - resident.true
        work.copied = self.copy(resident, work.context, most)
        work.restored = self._restore(resident, work.context, most)
        return len(resident)

    def _shift(self, resident: Resident, context: Tokens) -> None:
        if self._rotation is not None and (piece := resident.piece(context)) is not None:
            self._rotation.shift(self._slab, resident.slot, *piece)
            resident.cut_out(*piece)
            self._figures.shifts += 1

    def copy(self, resident: Resident, context: Tokens, most: int) -> int:
        """Takes over what another slot has of the context beyond this one's. Returns how many tokens that were."""
        there = len(resident)
        size, source = max(
            (
                (min(other.common(context), other.true, most), other.slot)
                for other in self.residents.values()
                if other is not resident and not (resident.exact and other.rounded)
            ),
            default=(0, 0),
        )
        if size - there < WORTH_COPYING:
            return 0
        self._slab.copy(source, resident.slot, there, size)
        resident.extend(context[there:size])
        resident.rounded |= any(other.rounded for other in self.residents.values() if other.slot == source)
        return size - there

    def _restore(self, resident: Resident, context: Tokens, most: int) -> int:
        """Takes over what blocks have of the context beyond the slot's. Returns how many tokens that were."""
        there, whole = len(resident), max(0, most) // BLOCK
        if self._blocks is None or whole * BLOCK <= there or not self._pays:
            return 0
        first = there // BLOCK
        keys = Chain(self._identity, resident.exact).keys(context[: whole * BLOCK].tolist())[first:]
        known = self._blocks.has(keys)
        keys = keys[: known.index(False)] if False in known else keys
        if not keys:
            return 0
        began = time.perf_counter()
        for block, (key, raw) in enumerate(zip(keys, self._blocks.get(keys), strict=True), start=first):
            if raw is None or not self._packing.unpack(resident.slot, block, raw):
                if raw is not None:
                    self._figures.broken_blocks += 1
                    log.warning("a block of %d bytes isn't whole: its tokens are computed again", len(raw))
                    self._blocks.discard(key)
                break
            new = context[len(resident) : (block + 1) * BLOCK]
            resident.extend(new)
            resident.rounded |= not resident.exact
        restored = len(resident) - there
        self._slab.lengths[resident.slot] = len(resident)
        if restored:
            self._figures.restore_s += time.perf_counter() - began
            self._measured += restored
        return restored

    @property
    def _pays(self) -> bool:
        """Whether restoring is cheaper than computing, as measured; assumed until both have been measured well."""
        restored, computed = self._measured, self._figures.prefilled_tokens
        if min(restored, computed) < WELL:
            return True
        return self._figures.restore_s / restored < self._figures.prefill_s / computed

    def _cut(self, resident: Resident, length: int) -> None:
        resident.cut(length)
        self._slab.lengths[resident.slot] = length

    # -- what is kept --------------------------------------------------------------------------------------------------

    def save(self, session: str) -> int:
        """Keeps a session's whole blocks. Returns how many of its tokens are kept."""
        resident = self.residents.get(session)
        if resident is None or self._blocks is None:
            return 0
        while self._save_next(resident):
            pass
        return resident.saved * BLOCK

    def save_one(self) -> bool:
        """Keeps one block of an idle session. Returns whether there was one."""
        try:
            return self._blocks is not None and any(self._save_next(resident) for resident in self._idle(""))
        except Exception:  # a store of blocks must not raise: tried again and again it would take all of the thread
            log.exception("blocks can't be kept; this decoder asks for none any more")
            self._blocks = None
            return False

    def forget(self, session: str) -> None:
        """Drops it here and in the blocks."""
        if (resident := self.residents.get(session)) is not None:
            self.drop(resident)
        if self._blocks is not None:
            self._blocks.forget(session)

    def _save_next(self, resident: Resident) -> bool:
        blocks, block = self._blocks, resident.saved
        if blocks is None or (block + 1) * BLOCK > resident.true:
            return False
        key = resident.keys()[block]
        if not blocks.has([key])[0]:
            blocks.put({key: self._packing.pack(resident.slot, block, exact=resident.exact)}, resident.session)
            self._figures.saved_blocks += 1
        resident.saved += 1
        return True
