"""What stands beside ONNX Runtime: the little that an engine must do, so that remote ones can join."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = Mapping[str, Array]
"""ONNX name -> array, one row an event."""


class Engine(Protocol):
    """Computes one model version. Rows in, as many rows out, in the same order."""

    @property
    def identity(self) -> str:
        """sha256 over the model's bytes and its manifest: the same answers come from the same identity alone."""

    async def run(self, inputs: Arrays, *, aside: bool = False) -> Arrays:
        """Computes all outputs of the rows. Never blocks the event loop. aside: never in the way of other calls."""

    def close(self) -> None:
        """Frees what it holds. Nothing may be in flight."""


class Load(Protocol):
    """How busy an engine is, as an admission hook sees it."""

    @property
    def queued_rows(self) -> int:
        """Rows that wait or are being computed."""

    @property
    def failures(self) -> int:
        """Runs that failed since the start."""

    def p95(self) -> float:
        """95th percentile, in seconds, of the last runs' way from the call to its answer; 0.0 before the first."""


class Admission(Protocol):
    """Decides whether a call may join the queue."""

    def admit(self, rows: int, load: Load) -> None:
        """Returns, or raises what the caller is to see; the call then costs the engine nothing."""


def rows_of(arrays: Arrays) -> int:
    """How many rows the arrays have, which they must agree on. Raises ValueError when they don't, or none is given."""
    sizes = {len(array) for array in arrays.values()}
    if len(sizes) != 1:
        shapes = {name: np.shape(array) for name, array in arrays.items()}
        raise ValueError(f"the arrays must have one number of rows, got {shapes}")
    return sizes.pop()
