"""How a partition's committed values come to RocksDB: a few at a time, beside the work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from core.errors import CorruptStoreError, DataFolderError, TaskError
from engine.store import Meta, PartitionStore
from engine.table import Shard, Values

if TYPE_CHECKING:
    from engine.task import PartitionTask

INTERVAL_S: Final = 2.0
CHUNK: Final = 200
PAUSE_S: Final = 0.005
"""Values written to RocksDB in one go, about .7 ms, and the pause after it: no event waits long for a checkpoint."""
GOLDEN: Final = 0.618
"""Multiples of it, less their whole part, are far apart however many there are."""
MAX_VALUES: Final = 50_000
"""Committed values that call for a checkpoint. While one is under way twice as many may come; then nothing is read."""


class Checkpoints:
    """Those of one task, one after the other."""

    def __init__(self, task: PartitionTask) -> None:
        self._task = task
        self._began = time.monotonic()
        self._waiting = 0
        """Committed values that RocksDB doesn't have, as of the last commit."""
        self._writing: asyncio.Task[None] | None = None

    @property
    def crowded(self) -> bool:
        """Whether so much waits for the end of one that nothing more should be read."""
        return self._writing is not None and self._waiting > 2 * MAX_VALUES

    def opened(self) -> None:
        """The task is about to open: RocksDB has all that is committed."""
        # Partitions open at the same time: all checkpoints at once would take half of the event loop for a while.
        self._began = time.monotonic() - INTERVAL_S * (self._task.partition * GOLDEN % 1)
        self._waiting = 0

    def committed(self, meta: Meta) -> None:
        """Begins the next one when it is time and the last one is over. Not while a commit is between taking and
        absorbing. meta: what the commit has brought the tables to."""
        shards, store = self._task.shards, self._task.store
        self._waiting = sum(shard.waiting for shard in shards.values())
        due = time.monotonic() - self._began > INTERVAL_S or self._waiting > MAX_VALUES
        if due and store is not None and self._writing is None:
            self._began = time.monotonic()
            taken = {name: shard.hand_over() for name, shard in shards.items()}
            self._writing = asyncio.create_task(self._write(store, shards, taken, meta))

    async def _write(
        self, store: PartitionStore, shards: dict[str, Shard], taken: Mapping[str, Values], meta: Meta
    ) -> None:
        engine = self._task.engine
        try:
            for table, values in taken.items():
                keys = list(values)
                for i in range(0, len(keys), CHUNK):
                    store.write({table: {key: values[key] for key in keys[i : i + CHUNK]}})
                    await asyncio.sleep(PAUSE_S)  # RocksDB holds the GIL: let others have it
            store.write({}, meta)
            async with engine.committer.lock:
                self._tidy(shards)
        except CorruptStoreError as error:
            await engine.committer.failed(error)
        except TaskError:
            return  # the task is closed, or opened anew: this checkpoint is only older than it could be
        except DataFolderError as error:
            engine.fatal(error)
        finally:
            self._writing = None
            engine.wake.set()

    def _tidy(self, shards: dict[str, Shard]) -> None:
        task = self._task
        if task.shards is not shards:
            return  # the task has been closed, or opened anew
        unfinished = task.unfinished()
        for name, shard in shards.items():
            shard.written()
            shard.tidy(unfinished)
            if task.engine.tables[name].expire(shard, task.watermark, unfinished):
                task.touch()
