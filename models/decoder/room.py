"""How the room of a prompt is divided between what was said before and the passages that an answer is made from."""

from __future__ import annotations

from typing import Final, NamedTuple

PASSAGES: Final = 0.5
"""Share of the room that passages have for certain; turns have the rest: neither can push out the other."""


class Room(NamedTuple):
    """Tokens, each."""

    turns: int
    passages: int


def divided(room: int, turns: int, passages: int, pinned: int = 0) -> Room:
    """What each may have of so many tokens that are left beside what can't be left out (instructions, facts, the
    question). Who wants less than its share leaves the rest to the other.

    turns, passages: what they would like to have. pinned: of the turns, those that stay in any case; passages have
    what is left of the room beside them at most. Worked values: divided(1000, 200, 900) is (200, 800);
    divided(1000, 900, 900) is (500, 500); divided(1000, 900, 0) is (1000, 0).
    """
    most = max(0, min(passages, room - pinned))
    share = min(most, int(PASSAGES * room))
    given = max(share, min(most, room - turns))
    return Room(room - given, given)
