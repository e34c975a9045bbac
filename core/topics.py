"""One table of every topic: its name, key and value, how long it keeps, how it is cleaned up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from core.events import Action, Alert, Deployment, ModelStatus, Observation, Prediction

E = TypeVar("E")


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
class TopicSpec(Generic[E]):
    """A topic as it must be. All topics have the same partition count, so that the task of partition p
    owns partition p of each."""

    name: str
    key: str
    """What keys it. `session`: the key must be the session that the value names."""
    value: type[E]
    """What its JSON decodes to; `bytes` is left as it is."""
    direction: Direction
    cleanup: Cleanup = Cleanup.DELETE
    retention: timedelta | None = timedelta(days=7)
    """None keeps for ever; compacted topics keep the newest value of each key."""

    def config(self, max_record: int) -> dict[str, str]:
        """Topic configs, for a broker that must take records of max_record bytes and a dead letter's extra."""
        config = {"cleanup.policy": self.cleanup.value, "max.message.bytes": str(max_record + 65_536)}
        if self.cleanup is Cleanup.DELETE:
            config["retention.ms"] = (
                "-1" if self.retention is None else str(self.retention // timedelta(milliseconds=1))
            )
        elif self.direction is Direction.INTERNAL:
            # Small segments: the cleaner only touches closed ones, and a replay reads what it left.
            config |= {"segment.bytes": str(64 << 20), "min.compaction.lag.ms": "600000"}
        return config


OBSERVATIONS: Final = TopicSpec("observations", "session", Observation, Direction.IN)
CONTROL: Final = TopicSpec("control", "model", Action, Direction.IN)
DEPLOYMENTS: Final = TopicSpec("deployments", "model", Deployment, Direction.OUT, Cleanup.COMPACT)
PREDICTIONS: Final = TopicSpec("predictions", "session", Prediction, Direction.OUT)
ALERTS: Final = TopicSpec("alerts", "subject", Alert, Direction.OUT)
DEAD_LETTERS: Final = TopicSpec("dead-letters", "as input", bytes, Direction.OUT)
LATE: Final = TopicSpec("late", "as input", bytes, Direction.OUT)
MODEL_STATUS: Final = TopicSpec("model-status", "worker", ModelStatus, Direction.OUT, Cleanup.COMPACT)

ALL: Final[tuple[TopicSpec[Any], ...]] = (
    OBSERVATIONS,
    CONTROL,
    DEPLOYMENTS,
    PREDICTIONS,
    ALERTS,
    DEAD_LETTERS,
    LATE,
    MODEL_STATUS,
)
"""What the worker creates and checks when it starts. Topics of later agents join here with the agent."""


def changelog(app_id: str, table: str) -> TopicSpec[bytes]:
    """The compacted topic that holds a table: each key's newest value."""
    return TopicSpec(f"{app_id}-{table}-changelog", "as table", bytes, Direction.INTERNAL, Cleanup.COMPACT, None)
