"""Who follows the value of a key: what each commit makes of it is handed on, up to a bound."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from engine.table import Items

PENDING: Final = 16
"""Values that wait for one follower; beyond it the oldest go."""


class Change(NamedTuple):
    """What a commit made of a key."""

    raw: bytes | None
    """The stored value; None: deleted."""
    skipped: int
    """Values before this one that the follower was too slow for."""


class Watch:
    """One follower. Iterates over changes until the partition leaves this worker, or opens anew."""

    def __init__(self) -> None:
        self._values: deque[bytes | None] = deque(maxlen=PENDING)
        self._skipped = 0
        self._over = False
        self._news = asyncio.Event()

    def put(self, raw: bytes | None) -> None:
        """A commit has written this. Never waits."""
        self._skipped += len(self._values) == PENDING
        self._values.append(raw)
        self._news.set()

    def end(self) -> None:
        """Nothing more will come; what waits is still handed out."""
        self._over = True
        self._news.set()

    def __aiter__(self) -> AsyncIterator[Change]:
        return self

    async def __anext__(self) -> Change:
        while not self._values:
            if self._over:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        skipped, self._skipped = self._skipped, 0
        return Change(self._values.popleft(), skipped)


class Watches:
    """All followers of a worker. Costs a commit nothing while there are none."""

    def __init__(self) -> None:
        self._followed: dict[tuple[int, str], dict[bytes, set[Watch]]] = {}
        """(partition, table) -> key -> who follows it."""

    @contextmanager
    def on(self, partition: int, table: str, key: bytes) -> Iterator[Watch]:
        """Follows a key inside the `with` block."""
        watch, place = Watch(), (partition, table)
        followed = self._followed.setdefault(place, {})
        followed.setdefault(key, set()).add(watch)
        try:
            yield watch
        finally:
            followed[key].discard(watch)
            if not followed[key]:
                del followed[key]
            if not followed and self._followed.get(place) is followed:
                del self._followed[place]

    def committed(self, partition: int, changes: Mapping[str, Items]) -> None:
        """A commit of a partition has succeeded."""
        if not self._followed:
            return
        for table, items in changes.items():
            if followed := self._followed.get((partition, table)):
                for key, raw in items:
                    for watch in followed.get(key, ()):
                        watch.put(raw)

    def closed(self, partition: int) -> None:
        """A partition isn't open any more."""
        for (number, _), followed in self._followed.items():
            if number == partition:
                for watches in followed.values():
                    for watch in watches:
                        watch.end()
