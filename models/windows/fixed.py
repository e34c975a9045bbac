"""Whole turns from the newest back, as many as fit into a number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from models.windows.turn import T, tokens

FIXED: Final = 1024
"""Tokens where nobody says another number."""


def fixed(turns: Sequence[T], room: int) -> list[T]:
    """Turns, oldest first -> those that stay: from the newest back while they fit, stopping at the first that does
    not."""
    left = room - tokens(turn for turn in turns if turn.pinned)

    def fits(turn: T) -> bool:
        nonlocal left
        left -= turn.count
        return left >= 0

    kept = set(map(id, takewhile(fits, (turn for turn in reversed(turns) if not turn.pinned))))
    return [turn for turn in turns if turn.pinned or id(turn) in kept]
