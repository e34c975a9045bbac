"""The library -> Qdrant, where one is configured: whoever owns a partition keeps its points as the library is."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from core.errors import QdrantError
from engine.engine import Engine
from models.knowledge.outbox import Outbox
from models.knowledge.qdrant import Qdrant

log = logging.getLogger(__name__)

STEP: Final = 64
"""Points that are written at a time: 3 ms of the event loop."""
IDLE_S: Final = 0.5
"""Until it looks again where nothing has told of changes: partitions come and go, embedders too."""
RETRY_S: Final = 1.0
COMPARE_S: Final = 600.0
"""Between two comparisons of all points of a partition with the library: a former owner's last write may have come
after its successor's."""


class Mirror:
    """Tells Qdrant what has changed, from the outbox that the library keeps. What fails stays there.

    A partition is compared as a whole when it comes to this worker, and after each failure: the server may have come
    back with less than it had.
    """

    def __init__(self, engine: Engine, qdrant: Qdrant) -> None:
        self._engine = engine
        self._knowledge = engine.knowledge
        self._qdrant = qdrant
        self._compared: dict[int, float] = {}
        """Partition -> when, monotonic."""
        self.wake = asyncio.Event()
        """Set by whoever has changed the library."""

    async def run(self) -> None:
        """For ever: nothing that Qdrant does ends it."""
        await self._knowledge.caught_up.wait()
        away: str | None = None
        while True:
            self.wake.clear()
            try:
                busy = await self._step()
                if away is not None and self._qdrant.error is None:
                    log.info("Qdrant answers again")
                    away = None
            except QdrantError as error:
                if str(error) != away:
                    log.warning("Qdrant: %s. Questions are answered by words alone, changes wait", error)
                away = str(error)
                self._qdrant.again()
                self._compared.clear()
                await asyncio.sleep(RETRY_S)
                continue
            if not busy:
                try:
                    async with asyncio.timeout(IDLE_S):
                        await self.wake.wait()
                except TimeoutError:
                    pass

    async def _step(self) -> bool:
        """Returns whether there was something to do. Raises QdrantError."""
        outbox = self._knowledge.library.outbox
        assert outbox is not None
        owned = {partition for partition, task in self._engine.tasks.items() if task.open}
        with self._engine.models.embedding(self._engine.settings.embedder) as embedder:
            if embedder is None:
                return False
            size = embedder.spec.size
        await self._qdrant.open(size)
        await self._compare(outbox, owned, size)
        due = await self._knowledge.write(outbox.due, owned, size, STEP)
        if due.puts:
            await self._qdrant.put(due.puts)
        if due.deletes:
            await self._qdrant.delete(due.deletes)
        if due.turns:
            await self._knowledge.write(outbox.done, due)
        return bool(due.turns)

    async def _compare(self, outbox: Outbox, owned: set[int], size: int) -> None:
        now = time.monotonic()
        self._compared = {
            partition: at for partition, at in self._compared.items() if partition in owned and now - at < COMPARE_S
        }
        for partition in sorted(owned - self._compared.keys()):
            there = await self._qdrant.versions(partition)
            differing = await self._knowledge.write(outbox.compare, partition, size, there)
            if differing:
                log.info("Qdrant has %d other points of partition %d than it should", differing, partition)
            self._compared[partition] = now
