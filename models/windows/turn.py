"""What a window knows of a turn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Counted(Protocol):
    """A message and what was replied: windows take it whole, or not at all."""

    @property
    def count(self) -> int:
        """Its tokens."""

    @property
    def pinned(self) -> bool:
        """Whether it always stays. Where such turns alone are too many it is the caller who refuses."""

    @property
    def folded(self) -> bool:
        """Whether it is a summary of turns that have gone. It is pinned, too."""


T = TypeVar("T", bound=Counted)


def tokens(turns: Iterable[Counted]) -> int:
    """Of all of them."""
    return sum(turn.count for turn in turns)
