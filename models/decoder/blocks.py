"""A session's KV in blocks of 64 tokens, each known by the model and by all tokens up to its end."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

import numpy as np

from models.decoder.half import Halves
from models.decoder.network import Slab

BLOCK: Final = 64
"""Tokens of a block. Whole ones are kept alone: the rest is prefilled with the next turn."""
_HEAD: Final = struct.Struct("<4sBxxxQ")
_MAGIC: Final = b"HKV1"
_HALF, _SINGLE = 2, 4
"""Bytes of a value."""


class Blocks(Protocol):
    """Keeps bytes under a key; may forget any of them at any time. Called from decoders' threads."""

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The blocks in the order of the keys, None for those that aren't there or can't be read. Never raises."""

    def put(self, blocks: Mapping[bytes, bytes], session: str) -> None:
        """Keeps blocks; what can't be kept is left out with a warning. session: whose they are first, for forget()."""

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
    and their sum."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._halves = Halves((len(slab.values), slab.values[0].shape[1], BLOCK, slab.values[0].shape[3]))

    def pack(self, slot: int, block: int, *, exact: bool) -> bytes:
        """One block of a slot: in fp32 where `exact` is asked, or a value is too large for fp16."""
        begin, floats = block * BLOCK, self._halves.floats
        for part, values in zip(floats, self._slab.values, strict=True):
            part[...] = values[slot, :, begin : begin + BLOCK]
        if not exact and self._halves.pack():
            halves = self._halves.halves.data
            return b"".join((_HEAD.pack(_MAGIC, _HALF, _check(halves)), halves))
        return b"".join((_HEAD.pack(_MAGIC, _SINGLE, _check(floats.data)), floats.data))

    def unpack(self, slot: int, block: int, raw: bytes) -> bool:
        """Puts a block into a slot, behind what is there already. False for bytes that aren't a whole block: nothing
        is changed then."""
        shape = self._halves.floats.shape
        if len(raw) < _HEAD.size:
            return False
        magic, size, check = _HEAD.unpack_from(raw)
        body = memoryview(raw)[_HEAD.size :]
        if magic != _MAGIC or size not in (_HALF, _SINGLE) or len(body) != size * self._halves.floats.size:
            return False
        if _check(body) != check:
            return False
        if size == _HALF:
            floats = self._halves.unpack(np.frombuffer(body, np.float16).reshape(shape))
        else:
            floats = np.frombuffer(body, np.float32).reshape(shape)
        begin = block * BLOCK
        for values, part in zip(self._slab.values, floats, strict=True):
            values[slot, :, begin : begin + BLOCK] = part
        self._slab.lengths[slot] = begin + BLOCK
        return True


def _check(body: memoryview) -> int:
    """A sum of its words: finds what was cut, and bits that were flipped."""
    return int(np.frombuffer(body.cast("B"), np.uint64).sum())
