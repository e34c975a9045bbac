"""Copies of partitions that other workers own: they follow the changelogs, so that a takeover replays only the tail."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from core.errors import CorruptStoreError, DataFolderError, TaskError
from engine.changelog import Changelog, changelog_reader
from engine.store import PartitionStore

if TYPE_CHECKING:
    from engine.engine import Engine

log = logging.getLogger(__name__)

EVERY_S: Final = 1.0
"""Seconds from one look at the changelogs to the next."""
FETCH: Final = 128 << 10
"""Bytes read at a time: about 2 ms of work, which events may have to wait for."""
REST: Final = 4.0
"""Seconds of pause for each second of work: a copy may take a fifth of the worker's thread."""
RETRY_S: Final = 5.0


class Copy:
    """One partition's tables as of a moment ago."""

    def __init__(self, engine: Engine, partition: int) -> None:
        self.partition = partition
        self.store: PartitionStore | None = None
        """Open, from its first look at the changelogs on."""
        self.current_at: float | None = None
        """When it last stood at the end of its changelogs, monotonic."""
        self._engine = engine
        self._opening: asyncio.Task[PartitionStore] | None = None

    async def catch_up(self, reader: AIOKafkaConsumer) -> None:
        """Reads what is new. Raises KafkaError, TaskError, DataFolderError."""
        engine, tables = self._engine, list(self._engine.tables)
        if self._opening is None:
            folder = engine.folder / str(self.partition)
            self._opening = asyncio.create_task(asyncio.to_thread(PartitionStore, folder, tables, engine.memory))
        self.store = await asyncio.shield(self._opening)
        began = time.monotonic()
        try:
            await Changelog(engine.connection, self.partition, tables).catch_up(reader, self.store, REST)
        except CorruptStoreError:
            await self.close()  # the next look opens it, and whoever opens a damaged store wipes it
            raise
        self.current_at = began

    @property
    def age_s(self) -> float | None:
        """Seconds since it stood at the end of its changelogs; None while it never has."""
        return None if self.current_at is None else time.monotonic() - self.current_at

    async def close(self) -> None:
        """Releases the folder: the partition's task may want it."""
        opening, self._opening, self.store = self._opening, None, None
        if opening is not None:
            await asyncio.wait([opening])
            if opening.exception() is None:
                await asyncio.to_thread(opening.result().close)


class Standbys:
    """The copies of this worker, one reader for all of them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.copies: dict[int, Copy] = {}
        self._changed = asyncio.Event()
        self._look: asyncio.Task[None] | None = None

    async def keep(self, partitions: set[int]) -> None:
        """Lets go of all other copies; returns when their folders are free."""
        gone = [copy for n, copy in self.copies.items() if n not in partitions]
        if not gone:
            return
        self.copies = {n: copy for n, copy in self.copies.items() if n in partitions}
        if self._look is not None:
            self._look.cancel()  # it may be in the middle of one of them; it begins anew with those that are left
            await asyncio.wait([self._look])
        await asyncio.gather(*(copy.close() for copy in gone))

    def follow(self, partitions: set[int]) -> None:
        """From now on there are copies of these too."""
        for partition in partitions - self.copies.keys():
            self.copies[partition] = Copy(self._engine, partition)
        self._changed.set()

    async def run(self) -> None:
        """Follows for ever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                async with changelog_reader(self._engine.connection, FETCH) as reader:
                    while self.copies:
                        self._look = asyncio.create_task(self._look_at_all(reader))
                        await asyncio.wait([self._look])
                        if not self._look.cancelled():
                            self._look.result()
                        await asyncio.sleep(EVERY_S)
            except (KafkaError, OSError, TaskError) as error:
                log.warning("Copies of other workers' partitions: %r; trying again", error)
                self._changed.set()
                await asyncio.sleep(RETRY_S)
            except DataFolderError as error:
                self._engine.fatal(error)

    async def _look_at_all(self, reader: AIOKafkaConsumer) -> None:
        for copy in list(self.copies.values()):
            if copy.partition in self.copies:
                await copy.catch_up(reader)

    def staleness(self) -> dict[int, float | None]:
        """How old each copy is."""
        return {n: copy.age_s for n, copy in sorted(self.copies.items())}
