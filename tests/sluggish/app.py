"""The application with a model that takes its time, for tests. `faust -A tests.sluggish.app worker`."""

from __future__ import annotations

import time
from typing import Final

from models.engine import Array, Arrays
from models.runtime import Runtime

TAKES_S: Final = 0.5
"""Seconds of each run, whatever its rows: about 1,000 of them, the most that an agent gets at once."""
_compute = Runtime.compute


def _slowly(runtime: Runtime, inputs: Arrays) -> dict[str, Array]:
    time.sleep(TAKES_S)
    return _compute(runtime, inputs)


Runtime.compute = _slowly  # type: ignore[assignment, method-assign]

from app import app

__all__ = ["app"]
