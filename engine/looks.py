"""When a broker is asked, and for which topics: all but those that rest, for their agents like much at once."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

BEHIND: Final = 1 << 18
"""Bytes of one partition at once, about, with which a topic doesn't rest: the next fetch may bring as many."""


class Looks:
    """Of one consumer."""

    def __init__(self, rests: Mapping[str, float]) -> None:
        """rests: topic -> seconds between two looks at it, whatever it brings."""
        self._rests = rests
        self._looked: defaultdict[str, dict[int, float]] = defaultdict(dict)
        """Topic -> broker -> when: each broker has some of its partitions, and is asked by itself."""
        self._asked: dict[int, float] = {}
        """Broker -> when."""
        self.apart_s = 0.0
        """Seconds from one fetch of a broker to the next, at least."""

    def came(self, topic: str, weight: int) -> None:
        """A fetch brought so many bytes of one of its partitions."""
        if weight >= BEHIND:
            self._looked.pop(topic, None)

    def early(self, broker: int) -> float:
        """Seconds until a broker may be asked, or 0."""
        return max(0.0, self._asked.get(broker, -self.apart_s) + self.apart_s - time.monotonic())

    def due(self, broker: int, topics: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """What is left of the topics, by name, that a broker is asked for now."""
        now = self._asked[broker] = time.monotonic()
        return [one for one in topics if one[0] not in self._rests or self._due(one[0], broker, now)]

    def _due(self, topic: str, broker: int, now: float) -> bool:
        looked = self._looked[topic]
        due = now - looked.get(broker, -self._rests[topic]) >= self._rests[topic]
        if due:
            looked[broker] = now
        return due
