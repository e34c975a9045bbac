"""session id -> the newest prediction of it. Written by scoring where HOMUNCULUS_CHAT_FACTS names a prediction: what a
language model is told of a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from engine.batch import Slice
from engine.table import KeyValueShard
from engine.timed import TimedTable

KEPT_MS: Final = 30 * 86_400_000
"""Event time after which a prediction says nothing of its session any more."""


class Latest(msgspec.Struct, omit_defaults=True):
    """What was answered."""

    ts: int
    """Event time, ms since epoch."""
    model: str
    version: str
    label: str
    scores: dict[str, float]
    confidence: float | None = None
    decision: bool | None = None


class LatestPredictions(TimedTable[str, Latest]):
    """Of a silent session nothing is kept after a while."""

    name = "latest"

    def keep(self, s: Slice[Any], answers: Sequence[Sequence[Any]]) -> None:
        """The newest of each session of a slice. answers: columns as predictions have them, from model to out_of_order;
        an event that came late isn't the newest."""
        values: dict[bytes, bytes | None] = {}
        columns = zip(s.events, *answers, strict=True)
        for event, model, version, label, scores, confidence, _, decision, late, _ in columns:
            if not late:
                told = Latest(event.ts, model, version, label, scores, confidence, decision)
                values[event.session.encode()] = self.encode(told)
        if values:
            cast(KeyValueShard, s.task.shard(self.name)).put_many(s, values)

    def due(self, value: Latest) -> int:
        return value.ts + KEPT_MS

    def fire(self, key: str, at: int) -> None:
        """Forgets it."""
        del self[key]


latest = LatestPredictions()
"""Of each session."""
