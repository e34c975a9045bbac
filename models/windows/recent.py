"""All turns, while they fit; then the oldest go, some at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from models.windows.turn import T, tokens

KEPT: Final = 0.75
"""Of the room, what stays when room is made: what follows what is dropped has to be computed anew, and that had better
be seldom."""


def recent(turns: Sequence[T], room: int, kept: float = KEPT) -> list[T]:
    """Turns, oldest first, and the tokens that there is room for -> those that stay, in their order: all while they
    fit; when they don't, the oldest go until what is left has `kept` of the room."""
    total = tokens(turns)
    if total <= room:
        return list(turns)
    left = []
    for turn in turns:
        if turn.pinned or total <= kept * room:
            left.append(turn)
        else:
            total -= turn.count
    return left
