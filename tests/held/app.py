"""The application with swaps that can be held in each of their phases, for tests. `faust -A tests.held.app worker`.

While the file that SWAP_HOLD names holds "PHASE VERSION", whoever gets there says so in the log and waits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from models import golden, runtime
from models.engine import Array, Arrays
from models.folder import ModelFolder
from models.live import LiveModels
from models.manifest import Manifest
from models.runtime import Runtime
from models.store import ModelStore
from models.swap import Stage
from models.verifier import Verifier
from models.version import LiveVersion

log = logging.getLogger(__name__)

HOLD: Final = Path(os.environ["SWAP_HOLD"])
_whose: ContextVar[str] = ContextVar("whose", default="")
"""The judge's, as long as it verifies before it accepts."""

_verify, _flip = LiveModels.verify, LiveModels._flip
_fetch, _warm_up = ModelStore.fetch, golden.warm_up
_begin, _compute = Runtime.__init__, Runtime.compute
_retire, _try = LiveVersion.retire, Verifier.check


def _is_held(where: str) -> bool:
    try:
        return HOLD.read_text() == where
    except FileNotFoundError:
        return False


def _hold(phase: str, version: str) -> None:
    where = f"{_whose.get()}{phase} {version}"
    if _is_held(where):
        log.warning("held in %s", where)
        while _is_held(where):
            time.sleep(0.02)


async def _judged(models: LiveModels, name: str, version: str, *more: Any) -> Manifest:
    before = _whose.set("judge's ")
    try:
        return await _verify(models, name, version, *more)
    finally:
        _whose.reset(before)


def _downloading(store: ModelStore, name: str, version: str, *more: Any) -> ModelFolder:
    _hold("downloading", version)
    return _fetch(store, name, version, *more)


def _verifying(made: Runtime, folder: ModelFolder, *more: Any, **options: Any) -> None:
    _hold("verifying", folder.manifest.version)
    _begin(made, folder, *more, **options)


async def _trying(verifier: Verifier, folder: ModelFolder, **options: Any) -> None:
    if _whose.get():
        await asyncio.to_thread(_hold, "verifying", folder.manifest.version)
    await _try(verifier, folder, **options)


def _warming(manifest: Manifest, compute: Any, *more: Any) -> None:
    _hold("warming", manifest.version)
    _warm_up(manifest, compute, *more)


def _flipping(models: LiveModels, model: Any, routing: Any) -> None:
    if routing.active is not None:
        _hold("flip", routing.active.version)
    _flip(models, model, routing)


def _computing(made: Runtime, inputs: Arrays) -> dict[str, Array]:
    _hold("draining", made.manifest.version)
    return _compute(made, inputs)


def _retiring(version: LiveVersion) -> None:
    _retire(version)
    if version.course.stage is Stage.DRAINING:
        log.warning("version %s drains", version.version)


LiveModels.verify = _judged  # type: ignore[assignment, method-assign]
LiveModels._flip = _flipping  # type: ignore[assignment, method-assign]
ModelStore.fetch = _downloading  # type: ignore[assignment, method-assign]
Runtime.__init__ = _verifying  # type: ignore[assignment, method-assign]
Verifier.check = _trying  # type: ignore[assignment, method-assign]
Runtime.compute = _computing  # type: ignore[assignment, method-assign]
runtime.warm_up = _warming  # type: ignore[assignment, attr-defined]
LiveVersion.retire = _retiring  # type: ignore[assignment, method-assign]

from app import app

__all__ = ["app"]
