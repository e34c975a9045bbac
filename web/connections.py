"""Connections that say nothing are let go: aiohttp has no limit on how long a request's headers may take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from aiohttp.web import Server

SILENT_S: Final = 20.0
"""Seconds that a connection may be open without a request of it being answered."""
MOST: Final = 500
"""Connections kept; beyond it the longest silent ones go at once."""
LOOK_S: Final = 1.0


class Connections:
    """Knows when each connection was last of use."""

    def __init__(self) -> None:
        self._used: dict[Any, float] = {}
        self._busy: dict[Any, int] = {}

    @contextmanager
    def busy(self, connection: Any) -> Iterator[None]:
        """A request of this connection is being answered."""
        self._busy[connection] = self._busy.get(connection, 0) + 1
        try:
            yield
        finally:
            self._busy[connection] -= 1
            if not self._busy[connection]:
                del self._busy[connection]
            self.used(connection)

    def used(self, connection: Any) -> None:
        """A request of this connection has been answered."""
        self._used[connection] = time.monotonic()

    async def watch(self, server: Server) -> None:
        """Looks for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look(server, time.monotonic())

    def look(self, server: Server, now: float) -> None:
        """now: a monotonic clock's seconds."""
        there = server.connections
        self._used = {connection: self._used.get(connection, now) for connection in there}
        silent = sorted((c for c in there if c not in self._busy), key=self._used.__getitem__)
        surplus = len(there) - MOST
        for place, connection in enumerate(silent):
            if place < surplus or now - self._used[connection] > SILENT_S:
                connection.force_close()
