"""ADWIN: finds that the mean of a stream has changed, in a window that is as long as the stream stays the same."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from models.drift.batch import UNIT

DELTA: Final = 0.002
CLOCK: Final = 32
"""Values between two looks: a block."""
SHORTEST: Final = 5
"""Values that either side of a cut has at least."""
_NEAR: Final = np.array([128, 112, 96, 80, 64, 56, 48, 40, 32, 28, 24, 20, 16, 12, 10, 8, 6], np.int64)
"""Values behind each cut at which less than a block begins: at every look the same."""
_REACH: Final = 128
_THIN: Final = 32
"""Blocks after which those that are no longer borders are forgotten."""
_ZERO: Final = np.zeros(1, np.int64).tobytes()

Ints = NDArray[np.int64]


class Cut(NamedTuple):
    """A change that was found, after which the window begins anew."""

    at: int
    """Values of this call up to and with the one at which it was found."""
    width: int
    """Values in the window."""
    before: float
    after: float
    """Means on both sides of the cut that stands out most."""
    since: int
    """Values behind it."""
    needed: float
    """By how much the means must differ, so that there is one."""


class Adwin(msgspec.Struct):
    """Finds what river.drift.ADWIN() of river 0.26 finds, at the same value: delta .002, a look every 32 values, and a
    window that is empty after each find.

    Source: Bifet and Gavalda 2007. After n values there are 4 + bit k of (n + 4) buckets of 2**k values, the largest
    size aside: so where they begin follows from n, and sums up to these places are all the memory that is needed. A
    batch's looks are taken together, at some more places than there are buckets; only where one of them stands out is
    it asked which are. Sums are whole numbers: no cut of the stream changes what is found.
    """

    width: int = 0
    """Values in the window."""
    squares: bytes = b""
    """Sum of their squares in UNIT**2, a little-endian number of 16 bytes; none: 0."""
    blocks: bytes = _ZERO
    """int64, growing: the blocks' numbers that may begin a bucket, the first aside one for each since the thinning."""
    sums: bytes = _ZERO
    """int64: sum of the values before each of them, in UNIT."""
    near: bytes = _ZERO
    """int64: the same before each of the last values, from 128 before the last look on, and before the next one."""

    def fold(self, sums: Ints, squares: Ints) -> list[Cut]:
        """The next n values, as sums before each place, (n + 1,), in UNIT and UNIT**2."""
        found = []
        at, n = 0, len(sums) - 1
        while at < n:
            cut = self._until_cut(sums[at:], squares[at:])
            if cut is None:
                break
            at += cut.at
            found.append(cut._replace(at=at))
        return found

    @property
    def mean(self) -> float | None:
        """Of the window; None while it is empty."""
        return int(np.frombuffer(self.near, np.int64)[-1]) / (self.width * UNIT) if self.width else None

    def _until_cut(self, sums: Ints, squares: Ints) -> Cut | None:
        """Takes values up to the first cut, or all."""
        old = np.frombuffer(self.near, np.int64)
        near = np.concatenate((old, sums[1:] + (old[-1] - sums[0])))
        before = int.from_bytes(self.squares, "little") - int(squares[0])
        width = self.width + len(sums) - 1
        if width // CLOCK > self.width // CLOCK:
            past = _Past(self.width, self.width + 1 - len(old), near, before, squares)
            past.add_blocks(self, width)
            cut = past.first_cut()
            if cut is not None:
                at = cut.width - self.width
                self.width, self.squares, self.blocks, self.sums, self.near = 0, b"", _ZERO, _ZERO, _ZERO
                return cut._replace(at=at)
            self._thin(width // CLOCK, past.blocks, past.far)
            near = near[max(width - width % CLOCK - _REACH - past.first, 0) :]
        self.width, self.near = width, near.tobytes()
        self.squares = (before + int(squares[-1])).to_bytes(16, "little")
        return None

    def _thin(self, now: int, blocks: Ints, far: Ints) -> None:
        """Forgets the blocks that began no bucket when the stream was last at a multiple of 32 blocks."""
        then = now // _THIN * _THIN
        if then > self.width // CLOCK:
            kept = _begin_buckets(blocks, then) | (blocks >= then - _REACH // CLOCK)
            blocks, far = blocks[kept], far[kept]
        self.blocks, self.sums = blocks.tobytes(), far.tobytes()


def _begin_buckets(blocks: Ints, after: int) -> NDArray[np.bool_]:
    """Which of these blocks begin a bucket of a block or more, after so many blocks."""
    found = [0]
    for level in range((after // 5).bit_length() - 1, -1, -1):
        upper = after >> level
        largest = upper < 10
        start = 0 if largest else ((upper >> 1) - 4) << (level + 1)
        found += [start + (k << level) for k in range(upper - 4 if largest else 4 + (upper & 1))]
    begins = np.array(found)
    return np.asarray(begins[np.searchsorted(begins, blocks, "right") - 1] == blocks)


class _Past:
    """The window at some looks."""

    def __init__(self, width: int, first: int, near: Ints, before: int, squares: Ints) -> None:
        """width: before these values. near: sums before the values from number `first` on. before + squares[k]: sum of
        the squares of width + k values."""
        self.width, self.first, self.near, self.before, self.squares = width, first, near, before, squares

    def add_blocks(self, adwin: Adwin, width: int) -> None:
        """The blocks that may begin a bucket at any of the looks up to a width, and the sums before them."""
        self.looks = np.arange(self.width // CLOCK + 1, width // CLOCK + 1) * CLOCK
        fresh = self.looks - _REACH
        if fresh[0] <= 0:
            fresh = fresh[fresh > 0]
        self.blocks = np.concatenate((np.frombuffer(adwin.blocks, np.int64), fresh // CLOCK))
        self.far = np.concatenate((np.frombuffer(adwin.sums, np.int64), self.near[fresh - self.first]))

    def first_cut(self) -> Cut | None:
        """The cut that stands out most at the first look that finds one; its `at` isn't set."""
        for k in np.flatnonzero(self._may_find()).tolist():
            if cut := self._cut(int(self.looks[k])):
                return cut
        return None

    def _may_find(self) -> NDArray[np.bool_]:
        """Looks that may find a cut, a few too many: (K,).

        With d the sum before a cut minus what it is by the window's mean, means differ by d n / (n0 n1), and what they
        have to differ by is more than (sqrt(2 b v n0 n1 / n) + 2/3 b) n / (n0 n1), v the variance and b growing with n.
        """
        n = self.looks.astype(np.float64)
        total = self.near[self.looks - self.first] / UNIT
        mean = total / n
        square = (self.squares[self.looks - self.width] + float(self.before)) / UNIT**2
        bound = math.log(2 * math.log(n[0]) / DELTA)
        scale = (1.9999 * bound) * (square / n - mean * mean)
        rows, near = len(n), len(_NEAR)
        older = np.empty((rows, near + len(self.blocks)))
        sums = np.empty_like(older)
        np.subtract(n[:, None], _NEAR, out=older[:, :near])
        older[:, near:] = self.blocks * float(CLOCK)
        sums[:, :near] = self.near[np.maximum(self.looks[:, None] - (_NEAR + self.first), 0)]
        sums[:, near:] = self.far
        sums *= 1 / UNIT
        share = older * (1 - older / n[:, None])
        sums -= older * mean[:, None]
        np.abs(sums, out=sums)
        sums -= 0.6666 * bound
        found = (sums > 0) & (share > 0) & (sums * sums > share * scale[:, None])
        return np.asarray(found.any(axis=1))

    def _cut(self, n: int) -> Cut | None:
        """The cut that stands out most at one look."""
        near = n - _NEAR[n - SHORTEST >= _NEAR]
        there = _begin_buckets(self.blocks, n // CLOCK)
        far = self.blocks[there] * CLOCK
        older = np.concatenate((near, far[far > 0]))
        sums = np.concatenate((self.near[near - self.first], self.far[there][far > 0]))
        newer = n - older
        total = int(self.near[n - self.first])
        square = self.before + int(self.squares[n - self.width])
        variance = max(n * square - total * total, 0) / (n * UNIT) ** 2
        bound = math.log(2 * math.log(n) / DELTA)
        share = 1.0 / (older - (SHORTEST - 1)) + 1.0 / (newer - (SHORTEST - 1))
        mean0, mean1 = sums / (older * UNIT), (total - sums) / (newer * UNIT)
        needed = np.sqrt(2 * bound * variance * share) + 2 / 3 * bound * share
        excess = np.abs(mean0 - mean1) - needed
        best = int(excess.argmax())
        if excess[best] <= 0:
            return None
        return Cut(0, n, float(mean0[best]), float(mean1[best]), int(newer[best]), float(needed[best]))
