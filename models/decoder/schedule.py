"""Who is served next: turns that wait for a slot, and contexts that wait for their next chunk."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from models.decoder.work import Work

REMEMBERED: Final = 10_000
"""Sessions whose last turn counts against their next."""


class Waiting:
    """Turns without a slot. Larger priorities first, then sessions that were served longest ago, then the order of
    submission; turns of one session always in their own order."""

    def __init__(self) -> None:
        self._works: list[Work] = []
        self._served: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._works)

    def __iter__(self) -> Iterator[Work]:
        return iter(list(self._works))

    def add(self, work: Work) -> None:
        """It waits from now on."""
        self._works.append(work)

    def remove(self, work: Work) -> None:
        """It doesn't any more."""
        self._works.remove(work)

    def served(self, session: str, tick: int) -> None:
        """A turn of the session has begun."""
        self._served.pop(session, None)
        self._served[session] = tick
        if len(self._served) > REMEMBERED:
            del self._served[next(iter(self._served))]

    def candidates(self, busy: Collection[str]) -> list[Work]:
        """The first turn of every session that isn't busy, in the order in which they are to be admitted."""
        first: dict[str, Work] = {}
        for work in self._works:
            if work.turn.session not in busy:
                first.setdefault(work.turn.session, work)
        return sorted(
            first.values(),
            key=lambda work: (-work.turn.priority, self._served.get(work.turn.session, 0), work.number),
        )


def next_prefill(works: Iterable[Work]) -> Work | None:
    """Whose chunk comes next: larger priorities first, then who has waited longest for one."""
    return min(works, key=lambda work: (-work.turn.priority, work.served, work.number), default=None)
