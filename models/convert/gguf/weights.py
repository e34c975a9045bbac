"""Matrices of a model as the graph's operators take them: whole, or in blocks of few bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from models.convert.gguf.source import Floats, Shape, Source
from models.engine import Array

BLOCK = 32
"""Values that share a scale, in GGUF's simple types and in ours."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix (rows, columns) in blocks of 32 along its columns: value = scale * (code - middle) + offset."""

    bits: int
    codes: Array
    """(rows, blocks, 32) uint8."""
    scales: Floats
    """(rows, blocks)."""
    offsets: Floats | None
    """(rows, blocks), where the type has a minimum; the middle is 2 ** (bits - 1)."""

    @classmethod
    def of(cls, source: Source, tensor: str, bits: int = 4) -> Self:
        """Blocks of Q4_0, Q4_1 and Q8_0 are taken as they are; other types are rounded, as rounded() does. bits: of
        those."""
        kind = source.kind(tensor)
        if kind not in {"Q4_0", "Q4_1", "Q8_0"}:
            return cls.rounded(source.dense(tensor), bits)
        rows, columns = source.shape(tensor)
        raw = source.raw(tensor).reshape(rows, columns // BLOCK, -1)
        scales = _half(raw[..., :2])
        if kind == "Q8_0":
            return cls(8, (raw[..., 2:].view(np.int8).astype(np.int16) + 128).astype(np.uint8), scales, None)
        packed = raw[..., -BLOCK // 2 :]
        codes = np.concatenate([packed & 15, packed >> 4], axis=-1)
        return cls(4, codes, scales, _half(raw[..., 2:4]) + 8 * scales if kind == "Q4_1" else None)

    @classmethod
    def rounded(cls, values: Floats, bits: int = 4) -> Self:
        """To 4 bits between each block's smallest and largest value, as Q4_1 is; to 8 bits on both sides of 0, as Q8_0
        is."""
        rows, columns = values.shape
        cut = values.reshape(rows, columns // BLOCK, BLOCK)
        if bits == 8:
            scales = (np.abs(cut).max(axis=-1) / 127).astype(np.float32)
            steps = np.where(scales == 0, 1, scales)[..., None]
            return cls(8, (np.rint(cut / steps) + 128).astype(np.uint8), scales, None)
        low, high = cut.min(axis=-1), cut.max(axis=-1)
        scales = ((high - low) / 15).astype(np.float32)
        steps = np.where(scales == 0, 1, scales)[..., None]
        codes = np.clip(np.rint((cut - low[..., None]) / steps), 0, 15).astype(np.uint8)
        return cls(4, codes, scales, (low + 8 * scales).astype(np.float32))

    @classmethod
    def summing(cls, count: int) -> Self:
        """What makes of `count` blocks of x their sums, twice, each time filled up with zeros to whole blocks."""
        padded = _whole(count)
        codes = np.full((2, padded, count, BLOCK), 8, np.uint8)
        blocks = np.arange(count)
        codes[:, blocks, blocks] = 9
        return cls(4, codes.reshape(2 * padded, count, BLOCK), np.ones((2 * padded, count), np.float32), None)

    @property
    def widened(self) -> Blocks:
        """The same of 4 bits without offsets, for an x with the sums of `summing` behind it: what the offsets add is in
        further columns, in two digits, to 1/210 of the largest of 32 offsets."""
        assert self.offsets is not None
        rows, count = self.offsets.shape
        padded = np.zeros((rows, _whole(count)), np.float32)
        padded[:, :count] = self.offsets
        left: Floats = padded.reshape(rows, -1, BLOCK)
        codes, scales = [self.codes], [self.scales]
        for _ in range(2):
            steps = (np.abs(left).max(axis=-1) / 7).astype(np.float32)
            digits = np.rint(left / np.where(steps == 0, 1, steps)[..., None])
            codes.append((digits + 8).astype(np.uint8))
            scales.append(steps)
            left = left - digits * steps[..., None]
        return Blocks(4, np.concatenate(codes, axis=1), np.concatenate(scales, axis=1), None)

    @property
    def packed(self) -> Array:
        """As MatMulNBits takes them: two codes of 4 bits a byte, the first in the low half."""
        return self.codes if self.bits == 8 else self.codes[..., 0::2] | (self.codes[..., 1::2] << 4)

    @property
    def values(self) -> Floats:
        """(rows, columns)."""
        dense = (self.codes.astype(np.float32) - 2 ** (self.bits - 1)) * self.scales[..., None]
        dense = dense if self.offsets is None else dense + self.offsets[..., None]
        flat: Floats = dense.reshape(len(dense), -1)
        return flat

    def same_form(self, other: Blocks) -> bool:
        """Whether their rows fit under each other."""
        return self.bits == other.bits and (self.offsets is None) == (other.offsets is None)


class Weights:
    """The matrices and vectors of one model, with q and k in halves."""

    def __init__(self, source: Source, shape: Shape) -> None:
        self._source, self._shape = source, shape

    def vector(self, tensor: str) -> Floats:
        """A norm's weight, or a bias."""
        return self._halves(tensor, self._source.dense(tensor))

    def stacked(self, tensors: Sequence[str]) -> Floats:
        """(columns, sum of rows): what a MatMul takes."""
        rows: Floats = np.concatenate([self._halves(name, self._source.dense(name)) for name in tensors])
        return rows.T

    def blocks(self, tensors: Sequence[str], bits: int) -> Blocks:
        """The rows of several matrices under each other; rounded anew where their types differ. bits: of what is
        rounded."""
        parts = [Blocks.of(self._source, name, bits) for name in tensors]
        if not all(parts[0].same_form(part) for part in parts):
            parts = [Blocks.rounded(part.values, bits) for part in parts]
        codes, scales, offsets = (
            None
            if getattr(parts[0], name) is None
            else np.concatenate(
                [self._halves(tensor, getattr(part, name)) for tensor, part in zip(tensors, parts, strict=True)]
            )
            for name in ("codes", "scales", "offsets")
        )
        assert codes is not None
        assert scales is not None
        return Blocks(parts[0].bits, codes, scales, offsets)

    def bias(self, tensors: Sequence[str]) -> Floats | None:
        """The biases of several matrices in one, zeros where one has none; None where none has."""
        names = [tensor.replace(".weight", ".bias") for tensor in tensors]
        if not any(map(self._source.has, names)):
            return None
        sizes = [self._source.shape(tensor)[0] for tensor in tensors]
        return np.concatenate(
            [
                self.vector(name) if self._source.has(name) else np.zeros(size, np.float32)
                for name, size in zip(names, sizes, strict=True)
            ]
        )

    def _halves(self, tensor: str, rows: Array) -> Array:
        """Rows of q and k that alternate between the halves of a head are put into order."""
        heads = self._shape.heads if ".attn_q." in tensor else self._shape.kv_heads if ".attn_k." in tensor else 0
        if not heads or not self._source.interleaved:
            return rows
        apart = rows.reshape(heads, self._shape.head_dim // 2, 2, *rows.shape[1:])
        return apart.swapaxes(1, 2).reshape(rows.shape)


def _whole(count: int) -> int:
    """Columns of as few whole blocks as hold `count`."""
    return -(-count // BLOCK) * BLOCK


def _half(raw: Array) -> Floats:
    return np.ascontiguousarray(raw).view(np.float16)[..., 0].astype(np.float32)
