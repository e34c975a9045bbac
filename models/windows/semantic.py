"""The newest turns, and of those before them the ones that are most about what is asked now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from models.windows.recent import recent
from models.windows.turn import T, tokens

NEWEST: Final = 0.5
"""Of the room, what the newest turns have for themselves."""
HELD: Final = 8
"""Rooms' worth of turns that a session holds for choosing from; what is older goes for good."""
MOST_TOKENS: Final = 32_768
MOST_TURNS: Final = 256
"""All that is held is in the record that each turn writes, some 10 bytes a token and 1 KB a turn for its vector: a
third of a megabyte each, at most."""


def held(turns: Sequence[T], room: int) -> list[T]:
    """Turns, oldest first -> those that later questions may still choose from."""
    kept = recent(turns, max(room, min(HELD * room, MOST_TOKENS)), kept=1.0)
    free = [n for n, turn in enumerate(kept) if not turn.pinned]
    gone = set(free[: max(0, len(free) - MOST_TURNS)])
    return [turn for n, turn in enumerate(kept) if n not in gone]


def semantic(turns: Sequence[T], room: int, likeness: Sequence[float]) -> list[T]:
    """Turns, oldest first, and how much each is like what is asked -> those that the model is told of, in their order.

    Pinned ones, then the newest while they have NEWEST of what is left, then the likest that fit, of equals the newest.
    Turns stay whole. The same turns and likeness give the same choice.
    """
    if tokens(turns) <= room:
        return list(turns)
    chosen = {n for n, turn in enumerate(turns) if turn.pinned}
    left = room - tokens(turns[n] for n in chosen)
    share = NEWEST * left
    free = [n for n in reversed(range(len(turns))) if n not in chosen]
    while free and turns[free[0]].count <= share:
        share -= turns[free[0]].count
        left -= turns[free[0]].count
        chosen.add(free.pop(0))
    for n in sorted(free, key=lambda n: (-likeness[n], -n)):
        if turns[n].count <= left:
            left -= turns[n].count
            chosen.add(n)
    return [turn for n, turn in enumerate(turns) if n in chosen]
