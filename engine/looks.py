"""Which topics a fetch asks for: those that flow each time, silent ones now and then. What a fetch costs both sides
goes by the partitions that it names, and most topics are silent most of the time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

SILENT_S: Final = 1.0
"""A topic without records for so long is silent."""
LOOK_S: Final = 0.1
"""Seconds between two looks at a silent topic while others flow: its next record waits for so long at most."""
BEHIND: Final = 1 << 18
"""Bytes of one partition at once, about, with which a topic doesn't rest where it else would: the next fetch may bring
as many."""


class Looks:
    """Of one consumer."""

    def __init__(self, rests: Mapping[str, float]) -> None:
        """rests: topic -> seconds between two looks at it whatever it brings, since its agent likes much at once."""
        self._rests = rests
        self.busy = False
        """Whether records flow. If not, nothing is silent: a fetch waits at the broker until there is a record."""
        self._came: dict[str, float] = {}
        self._looked: dict[str, float] = {}

    def came(self, topic: str, weight: int) -> None:
        """A fetch brought so many bytes of one of its partitions."""
        self._came[topic] = time.monotonic()
        if weight >= BEHIND:
            self._looked.pop(topic, None)

    def due(self, topics: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """What is left of a fetch's topics, by name: at least one, for it has to ask for something."""
        now = time.monotonic()
        due = [one for one in topics if now - self._looked.get(one[0], 0.0) >= self._pause(one[0], now)] or topics
        self._looked.update((name, now) for name, _ in due)
        return due

    def _pause(self, topic: str, now: float) -> float:
        silent = self.busy and now - self._came.setdefault(topic, now) >= SILENT_S
        return self._rests.get(topic, LOOK_S if silent else 0.0)
