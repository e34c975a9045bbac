"""What a commit takes from a partition."""

from __future__ import annotations

from typing import NamedTuple

from engine.meters import Finished
from engine.outboxes import TakenOutputs
from engine.outputs import Builders
from engine.table import Items


class Taken(NamedTuple):
    """What a commit takes from a task."""

    positions: dict[str, int]
    watermark: int
    changes: dict[str, Items]
    records: Builders
    """The changes, for the changelogs."""
    outputs: TakenOutputs
    finished: list[Finished]
    at: float
    """When, monotonic."""
