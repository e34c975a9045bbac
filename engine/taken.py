"""What a commit takes from a partition."""

from __future__ import annotations

from typing import NamedTuple

from engine.early import EarlyOutbox
from engine.meters import Finished
from engine.outputs import Builders
from engine.table import Items


class Taken(NamedTuple):
    """What a commit takes from a task."""

    positions: dict[str, int]
    watermark: int
    changes: dict[str, Items]
    records: Builders
    """The changes, for the changelogs."""
    outputs: Builders
    early: EarlyOutbox | None
    staged: int
    """So many outputs don't wait for a commit so far: all of them must have left before this one."""
    finished: list[Finished]
    at: float
    """When, monotonic."""
