"""One table of every topic: its name, what keys it, how long it keeps, how it is cleaned up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final


class Cleanup(StrEnum):
    """Kafka's cleanup.policy."""

    DELETE = "delete"
    COMPACT = "compact"


class Direction(StrEnum):
    """Who writes a topic: others, or we."""

    IN = "in"
    OUT = "out"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as it must be. All topics have the same partition count, so that the task of partition p
    owns partition p of each."""

    name: str
    key: str
    direction: Direction
    cleanup: Cleanup = Cleanup.DELETE
    retention: timedelta | None = timedelta(days=7)
    """None keeps for ever; compacted topics keep the newest value of each key."""

    def config(self, max_record: int) -> dict[str, str]:
        """Topic configs, for a broker that must take records of max_record bytes and a dead letter's extra."""
        config = {"cleanup.policy": self.cleanup.value, "max.message.bytes": str(max_record + 65_536)}
        if self.cleanup is Cleanup.DELETE:
            config["retention.ms"] = "-1" if self.retention is None else str(self.retention // timedelta(milliseconds=1))
        return config


def _in(name: str, key: str, cleanup: Cleanup = Cleanup.DELETE) -> TopicSpec:
    return TopicSpec(name, key, Direction.IN, cleanup)


def _out(name: str, key: str, cleanup: Cleanup = Cleanup.DELETE) -> TopicSpec:
    return TopicSpec(name, key, Direction.OUT, cleanup)


OBSERVATIONS: Final = _in("observations", "session")
CONTROL: Final = _in("control", "model")
DEPLOYMENTS: Final = _out("deployments", "model", Cleanup.COMPACT)
PREDICTIONS: Final = _out("predictions", "session")
ALERTS: Final = _out("alerts", "subject")
DEAD_LETTERS: Final = _out("dead-letters", "as input")
MODEL_STATUS: Final = _out("model-status", "worker", Cleanup.COMPACT)

ALL: Final[tuple[TopicSpec, ...]] = (
    OBSERVATIONS,
    CONTROL,
    DEPLOYMENTS,
    PREDICTIONS,
    ALERTS,
    DEAD_LETTERS,
    MODEL_STATUS,
)
"""What the worker creates and checks when it starts. Topics of later agents join here with the agent."""


def changelog(app_id: str, table: str) -> TopicSpec:
    """The compacted topic that holds a table: each key's newest value, and the source positions it stands for."""
    return TopicSpec(f"{app_id}-{table}-changelog", "as table", Direction.INTERNAL, Cleanup.COMPACT, None)
