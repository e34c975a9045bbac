"""What came from a remote store: each file once, by its sha256, and each version as a folder of links to its files.

    CACHE/.files/SHA256         a whole file
    CACHE/.files/SHA256.part    the beginning of one, to be gone on with
    CACHE/NAME/VERSION-HASH/    a version; HASH are the first letters of its manifest's sha256

Deleting any of it costs a download.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from core.errors import ModelError
from models.folder import ModelFolder, sha256
from models.manifest import MANIFEST, Manifest

log = logging.getLogger(__name__)


class ModelCache:
    """A folder that several workers of one machine may share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = folder / ".files"  # no model's name begins with a dot

    def place(self, expected: str, target: Path, download: Callable[[Path], None]) -> None:
        """Puts the file with this sha256 at the target.

        download: completes the file that it is given, checked; called only when the file isn't here, and by one worker
        at a time. Raises what it raises.
        """
        whole = self._files / expected
        target.parent.mkdir(parents=True, exist_ok=True)
        if not self._sound(whole, expected):
            self._files.mkdir(parents=True, exist_ok=True)
            part = whole.with_suffix(".part")
            with part.open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                try:
                    if not self._sound(whole, expected):  # nobody else has brought it while we waited
                        download(part)
                        part.rename(whole)
                finally:
                    if part.exists() and (whole.exists() or part.stat().st_size == 0):
                        part.unlink()
        try:
            os.link(whole, target)
        except OSError:  # no links on this file system
            shutil.copyfile(whole, target)

    def has(self, expected: str) -> bool:
        """Whether the file with this sha256 is here, unchecked."""
        return (self._files / expected).exists()

    def folder_of(self, name: str, version: str, manifest: bytes) -> Path:
        """Where a version is kept; another manifest is another folder."""
        return self.folder / name / f"{version}-{hashlib.sha256(manifest).hexdigest()[:16]}"

    def kept(self) -> Iterator[tuple[Path, Manifest]]:
        """Every version that was copied once, the newest copy first; without those whose manifest can't be read."""
        found = [path for path in self.folder.glob(f"*/*/{MANIFEST}") if not path.parent.name.startswith(".")]
        for path in sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True):
            try:
                yield path.parent, Manifest.read(path, f"the copy in {path.parent}")
            except ModelError as error:
                log.warning("left out: %s", error)

    def newest(self, name: str, version: str) -> ModelFolder | None:
        """A version as it was last copied, if it is here and unharmed."""
        for path, manifest in self.kept():
            if (manifest.name, manifest.version) == (name, version):
                try:
                    return ModelFolder.open(path, name, version)
                except ModelError as error:
                    log.warning("the copy in %s is damaged: %s", path, error)
        return None

    def _sound(self, whole: Path, expected: str) -> bool:
        if not whole.exists():
            return False
        if sha256(whole) == expected:
            return True
        log.warning("%s is damaged and is fetched anew", whole)
        whole.unlink(missing_ok=True)
        return False
