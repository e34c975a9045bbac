"""The oldest turns go, one at a time; what follows them is moved up in the model's memory, and not computed anew.

Xiao et al. 2023, Efficient Streaming Language Models with Attention Sinks: a model goes on well without its oldest
tokens as long as the very first ones stay, which attention leans on. What is left still knows of what has gone, through
what it was computed from, and its positions are new: an approximation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from models.windows.recent import recent
from models.windows.turn import T

SINKS: Final = 4
"""First tokens of a context that always stay, whoever's they are."""


def sinks(turns: Sequence[T], room: int) -> list[T]:
    """Turns, oldest first -> those that stay: the oldest go, no more of them than have to."""
    return recent(turns, room, kept=1.0)
