"""A session that has a slot: which tokens' keys and values are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from models.decoder.blocks import BLOCK, Chain

if TYPE_CHECKING:
    from models.decoder.work import Work

Tokens = NDArray[np.int32]

ALIKE: Final = 32
"""Tokens that must be the same behind a piece, for it to be cut out."""


class Resident:
    """Belongs to the decoder's thread."""

    def __init__(self, session: str, slot: int, window: int, identity: str, exact: bool) -> None:
        self.session = session
        self.slot = slot
        self.work: Work | None = None
        """The turn that is being made for it; None while it is idle."""
        self.used = 0
        """Number of the tick that touched it last."""
        self.rounded = False
        """Whether keys and values that went through fp16 are in it."""
        self.bent: int | None = None
        """Position from which on keys and values were computed behind tokens that have gone; None: they all follow from
        the tokens before them."""
        self.saved = 0
        """Whole blocks that are kept already."""
        self.exact = exact
        self._identity = identity
        self._tokens = np.zeros(window + 1, np.int32)
        self._length = 0
        self._chain = Chain(identity, exact)

    def __len__(self) -> int:
        return self._length

    @property
    def tokens(self) -> Tokens:
        """Those whose keys and values are in the slot."""
        return self._tokens[: self._length]

    @property
    def true(self) -> int:
        """How many tokens at the beginning have the keys and values that follow from them."""
        return self._length if self.bent is None else min(self.bent, self._length)

    def common(self, context: Tokens) -> int:
        """How many tokens at the beginning are the same."""
        return common(self.tokens, context)

    def piece(self, context: Tokens) -> tuple[int, int] | None:
        """Where a piece begins that has to be cut out, and its size, for what stands behind it to go on a context; None
        where that gains less than ALIKE tokens."""
        begin = self.common(context)
        rest, tokens = context[begin:], self.tokens
        if len(rest) < ALIKE or len(tokens) - begin <= ALIKE:
            return None
        alike = (sliding_window_view(tokens[begin + 1 :], ALIKE) == rest[:ALIKE]).all(axis=1)
        sizes = 1 + np.flatnonzero(alike)
        if not len(sizes):
            return None
        return begin, int(max(sizes, key=lambda size: common(tokens[begin + size :], rest)))

    def cut_out(self, begin: int, size: int) -> None:
        """A piece has gone, and what stood behind it was moved up."""
        self._tokens[begin : self._length - size] = self._tokens[begin + size : self._length]
        self._length -= size
        self.bent = begin if self.bent is None else min(self.bent, begin)
        self.saved = min(self.saved, begin // BLOCK)
        self._chain.cut(begin)

    def extend(self, tokens: Sequence[int] | Tokens) -> None:
        """They were computed, copied or restored, behind the others."""
        self._tokens[self._length : self._length + len(tokens)] = tokens
        self._length += len(tokens)

    def cut(self, length: int) -> None:
        """Only the first stay."""
        self._length = length
        self.saved = min(self.saved, length // BLOCK)
        self._chain.cut(length)
        if self.bent is not None and length <= self.bent:
            self.bent = None
        self.rounded = self.rounded and length > 0

    def become(self, exact: bool) -> None:
        """Its next turn asks for exact blocks, or no longer. Raises nothing; call cut(0) first where it is rounded."""
        if exact != self.exact:
            self.exact, self.saved = exact, 0
            self._chain = Chain(self._identity, exact)

    def keys(self) -> list[bytes]:
        """Of its whole blocks."""
        return self._chain.keys(self.tokens.tolist())


def common(some: Tokens, others: Tokens) -> int:
    """Length of the common beginning."""
    size = min(len(some), len(others))
    different = np.flatnonzero(some[:size] != others[:size])
    return int(different[0]) if len(different) else size
