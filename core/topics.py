"""One table of every topic: its name, key and value, how long it keeps, how it is cleaned up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from core.events import Action, Alert, Deployment, Feedback, ModelStatus, Observation, Prediction, Retrain
from core.messages import Message, Reply
from core.rules import RuleSet

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
    headers: Mapping[str, str] = field(default_factory=dict)
    """Name -> meaning of the headers that we write, or look at."""

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


TRACE: Final = {
    "traceparent": "W3C trace context; the outputs of an input that has it belong to its trace",
    "trace-id": "32 hex digits, where a sender has no traceparent",
}
MADE: Final = {
    "source": "TOPIC/PARTITION/OFFSET of the input that it was made of",
    "traceparent": "W3C trace context: the input's trace, else a new one",
    "early": "1 on what left before the commit of its input: a crash may repeat it",
}
REFUSED: Final = {
    "source": "TOPIC/PARTITION/OFFSET of the record",
    "traceparent": MADE["traceparent"],
    "time": "ISO 8601, UTC: when it was written here",
    "truncated": "bytes that the record had, where it was too large to be kept whole",
}

OBSERVATIONS: Final = TopicSpec("observations", "session", Observation, Direction.IN, headers=TRACE)
FEEDBACK: Final = TopicSpec("feedback", "session", Feedback, Direction.IN, headers=TRACE)
CONTROL: Final = TopicSpec("control", "model", Action, Direction.IN, headers=TRACE)
DEPLOYMENTS: Final = TopicSpec("deployments", "model", Deployment, Direction.OUT, Cleanup.COMPACT, headers=MADE)
PREDICTIONS: Final = TopicSpec("predictions", "session", Prediction, Direction.OUT, headers=MADE)
MESSAGES: Final = TopicSpec("messages", "session", Message, Direction.IN, headers=TRACE)
RULES: Final = TopicSpec("rules", "rule set", RuleSet, Direction.IN, Cleanup.COMPACT)
"""Every worker reads it whole, outside the group."""
REPLIES: Final = TopicSpec("replies", "session", Reply, Direction.OUT, headers=MADE)
ALERTS: Final = TopicSpec("alerts", "subject", Alert, Direction.OUT, headers=MADE)
DEAD_LETTERS: Final = TopicSpec(
    "dead-letters",
    "as input",
    bytes,
    Direction.OUT,
    headers=REFUSED | {"error": "class of the error", "message": "what was wrong with it, in words"},
)
LATE: Final = TopicSpec(
    "late",
    "as input",
    bytes,
    Direction.OUT,
    headers=REFUSED
    | {
        "event-time": "ISO 8601, UTC: the event's own time",
        "watermark": "ISO 8601, UTC: of the partition when it came",
        "until": "ISO 8601, UTC: of feedback, in place of the watermark: when its horizon ended",
        "late-ms": "how far the event's time was before the watermark, or after the horizon's end",
    },
)
SCORES: Final = TopicSpec(
    "scores", "model version", bytes, Direction.INTERNAL, retention=timedelta(days=2), headers=MADE
)
"""What each version answers, and what came of it, in columns: detectors read it (models/drift/answers.py)."""
RETRAIN: Final = TopicSpec("retrain", "model", Retrain, Direction.OUT, retention=timedelta(days=30), headers=MADE)
MODEL_STATUS: Final = TopicSpec("model-status", "worker", ModelStatus, Direction.OUT, Cleanup.COMPACT)

ALL: Final[tuple[TopicSpec[Any], ...]] = (
    OBSERVATIONS,
    MESSAGES,
    FEEDBACK,
    CONTROL,
    RULES,
    DEPLOYMENTS,
    PREDICTIONS,
    REPLIES,
    ALERTS,
    DEAD_LETTERS,
    LATE,
    MODEL_STATUS,
    SCORES,
    RETRAIN,
)
"""What the worker creates and checks when it starts. Topics of later agents join here with the agent."""


def changelog(app_id: str, table: str) -> TopicSpec[bytes]:
    """The compacted topic that holds a table: each key's newest value."""
    return TopicSpec(f"{app_id}-{table}-changelog", "as table", bytes, Direction.INTERNAL, Cleanup.COMPACT, None)
