"""A version's folder in the making: it is in the store whole, or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core.errors import ConversionError


@contextmanager
def making(store: Path, name: str, version: str) -> Iterator[Path]:
    """A folder to be filled, which becomes STORE/NAME/VERSION when nothing is raised, and goes else. Raises
    ConversionError where the version is there already."""
    target = store / name / version
    if target.exists():
        raise ConversionError(f"{target} exists; a version never changes: take another one")
    part = target.with_name(f".{version}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
