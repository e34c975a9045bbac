"""Both trained versions, kept in .cache: they are trained again only when what they are made from has changed."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from core.events import Observation
from examples.package import CACHE
from examples.purchases.data import PACKAGE
from examples.purchases.train import train
from models.store import ModelStore

ROOT: Final = Path(__file__).parents[2]
MADE_FROM: Final = (
    "core/*.py",
    "models/*.py",
    "models/convert/*.py",
    "models/drift/*.py",
    "tables/*.py",
    "examples/purchases/data.py",
    "examples/purchases/features.py",
    "examples/purchases/labels.py",
    "examples/purchases/train.py",
    "requirements-dev.txt",
)
"""The code that computes, fits and writes, and the libraries that it does so with."""


def folder(cache: Path = CACHE) -> Path:
    """Where the store of this code and this data is, or will be."""
    content = hashlib.sha256(f"{PACKAGE.sha256} {sys.version}".encode())
    for path in sorted(path for pattern in MADE_FROM for path in ROOT.glob(pattern)):
        content.update(path.read_bytes())
    return cache / "purchases" / content.hexdigest()[:16]


def trained(events: Sequence[Observation], cache: Path = CACHE) -> Path:
    """A model store with versions 1 and 2: the one in the cache, or a new one, which appears there whole.

    events: all purchases. Blocking, and not for a thread with an event loop. Raises DataError and ModelError as
    train() does.
    """
    target = folder(cache)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as part:
            store = Path(part, "store")
            train(events, ModelStore(str(store)))
            try:
                os.rename(store, target)
            except OSError:
                if not target.exists():  # else another run was quicker, with the same bytes
                    raise
    return target
