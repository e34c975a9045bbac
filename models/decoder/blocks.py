"""A session's KV in blocks of 64 tokens, each known by the model and by all tokens up to its end."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import numpy as np

from models.decoder.half import Conversion, finite
from models.decoder.network import Floats, Slab
from models.engine import Array

BLOCK: Final = 64
"""Tokens of a block. Whole ones are kept alone: the rest is prefilled with the next turn."""
_HEAD: Final = struct.Struct("<4sBxxxQ")
_MAGIC: Final = b"HKV1"
_HALF, _SINGLE = 2, 4
"""Bytes of a value."""
CACHED: Final = 400_000
"""Bytes of fp32 that are converted at once: they, their fp16 and what they come from fit into a core's own cache."""


class Blocks(Protocol):
    """Keeps bytes under a key; may forget any of them at any time. Called from decoders' threads."""

    def get(self, key: bytes, into: bytearray) -> memoryview | None:
        """Reads a block into the beginning of `into`. None where it isn't there or can't be read. Never raises."""

    def put(self, key: bytes, block: memoryview, session: str) -> None:
        """Keeps a block, whose memory is the caller's again afterwards; what can't be kept is left out with a warning.
        session: whose it is first, for forget()."""

    def discard(self, key: bytes) -> None:
        """Deletes one that has turned out to be damaged."""

    def forget(self, session: str) -> None:
        """Deletes what was put for a session."""

    def has(self, keys: Iterable[bytes]) -> list[bool]:
        """Which of the keys are there, as far as is known without reading them."""


class Chain:
    """The keys of a session's blocks. A block's key holds the model's identity, its own tokens and all before them:
    equal keys mean equal keys and values."""

    def __init__(self, identity: str, exact: bool) -> None:
        self._root = hashlib.sha256(f"{identity}/{'fp32' if exact else 'fp16'}".encode()).digest()
        self._keys: list[bytes] = []

    def keys(self, tokens: Sequence[int]) -> list[bytes]:
        """One for each whole block of the tokens, which must begin as those before did, up to the last cut()."""
        for block in range(len(self._keys), len(tokens) // BLOCK):
            before = self._keys[-1] if self._keys else self._root
            own = np.array(tokens[block * BLOCK : (block + 1) * BLOCK], np.int32).tobytes()
            self._keys.append(hashlib.sha256(before + own).digest())
        return self._keys[: len(tokens) // BLOCK]

    def cut(self, length: int) -> None:
        """Only so many tokens stay as they are."""
        del self._keys[length // BLOCK :]


class Packing:
    """Blocks of one slab to bytes and back: (2 * layers, kv_heads, 64, head_dim), behind a head that tells their type
    and their sum. In memory of its own, for fresh megabytes would cost more than the work, and a few layers at a time,
    which stay in the processor's cache on their way."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        parts, shape = len(slab.values), (slab.values[0].shape[1], BLOCK, slab.values[0].shape[3])
        size = parts * math.prod(shape)
        self.buffer: Final = bytearray(_HEAD.size + 4 * size)
        """What pack() gives, and where blocks are read to be unpacked."""
        self._singles = np.frombuffer(self.buffer, np.float32, size, _HEAD.size).reshape(parts, *shape)
        self._halves = np.frombuffer(self.buffer, np.float16, size, _HEAD.size).reshape(parts, *shape)
        step = max(1, CACHED // (4 * math.prod(shape)))
        self._some: Floats = np.empty((step, *shape), np.float32)
        self._groups: list[tuple[slice, Conversion, Conversion]] = []
        """Layers, with what halves and doubles them, between `some` and the buffer."""
        for begin in range(0, parts, step):
            group = slice(begin, min(begin + step, parts))
            halves, singles = self._halves[group], self._some[: group.stop - begin]
            self._groups.append((group, Conversion(singles, halves), Conversion(halves, singles)))

    def pack(self, slot: int, block: int, *, exact: bool) -> memoryview:
        """One block of a slot: in fp32 where `exact` is asked, or a value is too large for fp16. Valid until the next
        call."""
        begin, values = block * BLOCK, self._slab.values
        if values[0].dtype == np.float16:
            _gather(values, slot, begin, self._halves)
            return self._headed(_HALF)
        if not exact and self._halved(slot, begin):
            return self._headed(_HALF)
        _gather(values, slot, begin, self._singles)
        return self._headed(_SINGLE)

    def unpack(self, slot: int, block: int, raw: memoryview) -> bool:
        """Puts a block into a slot, behind what is there already. False for bytes that aren't a whole block: nothing
        is changed then. raw: the beginning of `buffer`, or anything else, which is copied there."""
        if len(raw) < _HEAD.size:
            return False
        magic, size, check = _HEAD.unpack_from(raw)
        if magic != _MAGIC or size not in (_HALF, _SINGLE) or len(raw) - _HEAD.size != size * self._singles.size:
            return False
        if raw.obj is not self.buffer:
            self.buffer[: len(raw)] = raw
        if _check(memoryview(self.buffer)[_HEAD.size : len(raw)]) != check:
            return False
        begin, values = block * BLOCK, self._slab.values
        if size == _SINGLE or values[0].dtype == np.float16:
            _scatter(self._singles if size == _SINGLE else self._halves, values, slot, begin)
        else:
            for group, _, double in self._groups:
                double.run()
                _scatter(self._some, values[group], slot, begin)
        self._slab.lengths[slot] = begin + BLOCK
        return True

    def _halved(self, slot: int, begin: int) -> bool:
        for group, halve, _ in self._groups:
            _gather(self._slab.values[group], slot, begin, self._some)
            halve.run()
            if not finite(self._halves[group]):
                return False
        return True

    def _headed(self, size: int) -> memoryview:
        whole = memoryview(self.buffer)[: _HEAD.size + size * self._singles.size]
        _HEAD.pack_into(self.buffer, 0, _MAGIC, size, _check(whole[_HEAD.size :]))
        return whole


def _gather(values: Sequence[Array], slot: int, begin: int, into: Array) -> None:
    for part, whole in zip(into, values, strict=False):
        part[...] = whole[slot, :, begin : begin + BLOCK]


def _scatter(parts: Array, values: Sequence[Array], slot: int, begin: int) -> None:
    for part, whole in zip(parts, values, strict=False):
        whole[slot, :, begin : begin + BLOCK] = part


def _check(body: memoryview) -> int:
    """A sum of its words: finds what was cut, and bits that were flipped."""
    return int(np.frombuffer(body, np.uint64).sum())
