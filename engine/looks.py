"""Which topics a fetch asks for: each time all but those that rest, for their agents like much at once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

BEHIND: Final = 1 << 18
"""Bytes of one partition at once, about, with which a topic doesn't rest: the next fetch may bring as many."""


class Looks:
    """Of one consumer."""

    def __init__(self, rests: Mapping[str, float]) -> None:
        """rests: topic -> seconds between two looks at it, whatever it brings."""
        self._rests = rests
        self._looked: dict[str, float] = {}

    def came(self, topic: str, weight: int) -> None:
        """A fetch brought so many bytes of one of its partitions."""
        if weight >= BEHIND:
            self._looked.pop(topic, None)

    def due(self, topics: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """What is left of a fetch's topics, by name: at least one, for it has to ask for something."""
        now = time.monotonic()
        due = [one for one in topics if now - self._looked.get(one[0], 0.0) >= self._rests.get(one[0], 0.0)] or topics
        self._looked.update((name, now) for name, _ in due)
        return due
