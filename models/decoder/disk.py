"""Blocks of idle sessions' KV on disk: a file each, the least recently used deleted beyond a budget.

Files and not RocksDB: values of megabytes that never change, are known by a hash and may be lost at any time need
neither order nor a log, and a file that is deleted gives its room back at once.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_FRESH: Final = ".part"
_SILENCE_S: Final = 60.0
"""Between two warnings of the same trouble."""


class BlockFolder:
    """Blocks in a folder of their own; several decoders may share one. Nothing is synchronised with the disk: what a
    crash of the system takes or cuts is computed again."""

    def __init__(self, path: Path, budget: int) -> None:
        """budget: bytes. What is there already is taken over, most recently used last. Raises OSError where the folder
        can't be made or read."""
        self.path, self.budget = path, budget
        self._lock = threading.Lock()
        self._told = -_SILENCE_S
        path.mkdir(parents=True, exist_ok=True)
        found = []
        for file in path.glob("*/*"):
            if file.suffix == _FRESH:
                file.unlink(missing_ok=True)
                continue
            status = file.stat()
            found.append((status.st_mtime_ns, file.name, file, status.st_size))
        self._files: OrderedDict[str, tuple[Path, int]] = OrderedDict(
            (name, (file, size)) for _, name, file, size in sorted(found)
        )
        self._bytes = sum(size for _, size in self._files.values())
        self._make_room(0)

    @property
    def size(self) -> int:
        """Bytes of all blocks."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._files)

    def get(self, key: bytes, into: bytearray) -> memoryview | None:
        """Reads a block into the beginning of `into`. None where it isn't there or can't be read."""
        with self._lock:
            return self._read(key.hex(), into)

    def put(self, key: bytes, block: memoryview, session: str) -> None:
        """Keeps a block; what can't be written is left out with a warning. session: whose it is first."""
        with self._lock:
            self._write(key.hex(), block, self._owner(session))

    def has(self, keys: Iterable[bytes]) -> list[bool]:
        """Which of the keys are there, as far as is known without looking."""
        with self._lock:
            return [key.hex() in self._files for key in keys]

    def discard(self, key: bytes) -> None:
        """Deletes one."""
        with self._lock:
            self._delete(key.hex())

    def forget(self, session: str) -> None:
        """Deletes what was put for a session, from the disk too."""
        owner = self._owner(session)
        with self._lock:
            for name in [name for name, (file, _) in self._files.items() if file.parent == owner]:
                self._delete(name)
            if owner.exists():
                shutil.rmtree(owner, ignore_errors=True)

    def _owner(self, session: str) -> Path:
        """A session's folder, which doesn't tell its name."""
        return self.path / hashlib.sha256(session.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def _read(self, name: str, into: bytearray) -> memoryview | None:
        if name not in self._files:
            return None
        file, _ = self._files[name]
        try:
            with file.open("rb", buffering=0) as stream:
                size = stream.readinto(into)
            _touch(file)
        except OSError as error:
            self._tell("a block can't be read, and is computed again", error)
            self._delete(name)
            return None
        self._files.move_to_end(name)
        return memoryview(into)[:size]

    def _write(self, name: str, raw: memoryview, owner: Path) -> None:
        if name in self._files or len(raw) > self.budget:
            return
        self._make_room(len(raw))
        file, fresh = owner / name, owner / f"{name}{_FRESH}"
        try:
            owner.mkdir(exist_ok=True)
            fresh.write_bytes(raw)
            _touch(fresh)
            fresh.replace(file)
        except OSError as error:
            self._tell("a block can't be kept, and will be computed again", error)
            with suppress(OSError):
                fresh.unlink(missing_ok=True)
            return
        self._files[name] = (file, len(raw))
        self._bytes += len(raw)

    def _make_room(self, size: int) -> None:
        while self._files and self._bytes + size > self.budget:
            self._delete(next(iter(self._files)))

    def _delete(self, name: str) -> None:
        if name in self._files:
            file, size = self._files.pop(name)
            self._bytes -= size
            with suppress(OSError):
                file.unlink(missing_ok=True)
                file.parent.rmdir()  # fails while it holds others

    def _tell(self, what: str, error: OSError) -> None:
        now = time.monotonic()
        if now - self._told >= _SILENCE_S:
            self._told = now
            log.warning("%s: %s", what, error)


def _touch(file: Path) -> None:
    """Used now. The system's own time stamps are the same for some milliseconds."""
    now = time.time_ns()
    os.utime(file, ns=(now, now))
