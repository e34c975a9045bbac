"""The worker's own data folder: workers that share DATA_DIR take numbered folders in it, each while it lives."""

from __future__ import annotations

import fcntl
import itertools
import tempfile
from pathlib import Path
from typing import IO, Any, Final

from core.errors import DataFolderError

LOCK: Final = "worker.lock"


class WorkerFolder:
    """DATA_DIR/APP_ID/N, with the lowest N that no living worker holds: after a restart it is the same again."""

    def __init__(self, application: Path) -> None:
        self._application = application
        self._lock: IO[Any] | None = None
        self.path = application / "0"

    def claim(self) -> Path:
        """Takes a folder until the process ends, however it ends. Raises DataFolderError."""
        try:
            for number in itertools.count():
                path = self._application / str(number)
                path.mkdir(parents=True, exist_ok=True)
                lock = (path / LOCK).open("a")
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    lock.close()
                    continue
                with tempfile.TemporaryFile(dir=path) as probe:
                    probe.write(b"homunculus")
                self._lock, self.path = lock, path
                return path
        except OSError as error:
            raise DataFolderError(
                f"{self._application.absolute()} can't be written ({error.strerror}): set HOMUNCULUS_DATA_DIR to a "
                "folder that this user owns, on a disk with space"
            ) from error
        raise AssertionError("counting ended")
