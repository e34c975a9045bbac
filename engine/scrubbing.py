"""Sessions that were erased leave the files of this worker's stores: RocksDB alone would keep their bytes until it
happens to compact them."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from core.errors import DataFolderError, TaskError
from engine.store import PartitionStore

if TYPE_CHECKING:
    from engine.engine import Engine

log = logging.getLogger(__name__)

LOOK_S: Final = 10.0
"""Seconds from one look at the stores to the next."""
REST: Final = 4.0
"""Seconds of pause for each second of scrubbing: it may take a fifth of a core."""
LEFT_S: Final = 3600.0
"""Seconds after which the folder of a partition that is elsewhere is deleted: nobody erases anything there, and a
replay of what has happened since costs no less than a whole one."""
_GONE: Final = ".gone-"


class Scrubber:
    """Looks after this worker's stores: those of tasks, those of copies, and those that were left behind."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._left: dict[Path, float] = {}
        """Folder that nobody uses -> since when."""

    async def run(self) -> None:
        """Looks for ever, at one store after the other."""
        while True:
            await asyncio.sleep(LOOK_S)
            for store in list(self._stores()):
                if store.tainted:
                    await self._scrub(store)
            await self._delete(self._left_behind(time.monotonic()))

    def _stores(self) -> Iterator[PartitionStore]:
        engine = self._engine
        stores = [task.store for task in engine.tasks.values()]
        stores += [copy.store for copy in engine.standbys.copies.values()]
        return (store for store in stores if store is not None)

    async def _scrub(self, store: PartitionStore) -> None:
        began = time.monotonic()
        try:
            await asyncio.to_thread(store.scrub)
        except TaskError:
            return  # it was closed meanwhile, say: it is as it was, for the next look or for whoever opens it
        except DataFolderError as error:
            self._engine.fatal(error)
            return
        took = time.monotonic() - began
        log.info(
            "%s holds nothing of erased sessions any more: its files were written anew in %.1f s", store.path, took
        )
        await asyncio.sleep(REST * took)

    def _left_behind(self, now: float) -> list[Path]:
        """Folders whose partitions have been elsewhere for long; each is out of everybody's way when it is returned."""
        engine = self._engine
        used = {str(n) for n in (*engine.tasks, *engine.standbys.copies)}
        there = [path for path in engine.folder.iterdir() if path.is_dir() and not path.is_symlink()]
        unused = [path for path in there if path.name.isdecimal() and path.name not in used]
        self._left = {path: self._left.get(path, now) for path in unused}
        gone = [path for path in there if path.name.startswith(_GONE)]
        for path, since in self._left.items():
            if now - since > LEFT_S:
                away = path.with_name(f"{_GONE}{path.name}-{time.time_ns()}")
                with suppress(OSError):
                    path.rename(away)
                    gone.append(away)
        return gone

    async def _delete(self, folders: list[Path]) -> None:
        for folder in folders:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            if not folder.exists():
                log.info("%s is deleted: its partition has been elsewhere for long", folder)
