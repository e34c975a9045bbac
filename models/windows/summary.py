"""The oldest turns are folded into a summary, which the model makes itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, NamedTuple

from models.windows.recent import KEPT
from models.windows.turn import T, tokens

SHARE: Final = 0.25
"""Of the room, what a summary may have;"""
LONGEST: Final = 256
"""of so many tokens at most."""


class Fold(NamedTuple, Generic[T]):
    """What becomes a summary, and what stays as it was said."""

    old: list[T]
    """Oldest first; the summary before this one is among them."""
    kept: list[T]


def fold(turns: Sequence[T], room: int) -> Fold[T] | None:
    """Turns, oldest first, and the tokens that there is room for -> None while all fit. When they don't, the oldest are
    folded until what is left has room for their summary, too, and some more: each summary costs a reply's time, and
    what follows it is computed anew."""
    total = tokens(turns)
    if total <= room:
        return None
    old, kept = [], []
    for turn in turns:
        if turn.folded or (not turn.pinned and total > (KEPT - SHARE) * room):
            old.append(turn)
            total -= turn.count
        else:
            kept.append(turn)
    return Fold(old, kept) if any(not turn.folded for turn in old) else None


def longest(room: int) -> int:
    """Tokens that a summary may have."""
    return min(LONGEST, int(SHARE * room))
