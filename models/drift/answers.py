"""Answers of one version as columns, and the bytes that they cross a topic in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from core.errors import DecodeError

MOST_PARTITIONS: Final = 1_000_000


class Scored(msgspec.Struct, tag="scored", array_like=True, frozen=True, gc=False):
    """What one version answered in one slice of observations: little-endian columns of one length."""

    partition: int
    """Of the observations."""
    offsets: bytes
    """(n,) int64, growing."""
    ts: bytes
    """(n,) int64: event times, ms since epoch."""
    best: bytes
    """(n,) uint16: the label with the largest score, by its place in the manifest; 0 of regressors."""
    score: bytes
    """(n,) float32: that label's probability, or a regressor's value."""
    confidence: bytes = b""
    """(n,) float32; empty where the model has none."""
    features: bytes = b""
    """(n, d) float32 of the features that the version's reference describes, in its order; empty where there is none.
    Missing ones are NaN; a category is its place in the reference, -1 where the reference doesn't know it."""


@dataclass(frozen=True, slots=True)
class Answers:
    """n answers of one version, in the order in which detectors see them."""

    partition: NDArray[np.int32]
    offset: NDArray[np.int64]
    ts: NDArray[np.int64]
    """ms since epoch."""
    best: NDArray[np.uint16]
    score: NDArray[np.float32]
    confidence: NDArray[np.float32] | None
    features: NDArray[np.float32] | None
    """(n, d)"""
    topic: str = "observations"
    """As the broker names it."""

    def __len__(self) -> int:
        return len(self.ts)

    def source(self, i: int) -> str:
        """Where the observation of answer i stands."""
        return f"{self.topic}/{self.partition[i]}/{self.offset[i]}"

    def take(self, where: Any) -> Answers:
        """Some of them, by a slice, a mask or places."""
        return Answers(
            self.partition[where],
            self.offset[where],
            self.ts[where],
            self.best[where],
            self.score[where],
            None if self.confidence is None else self.confidence[where],
            None if self.features is None else self.features[where],
            self.topic,
        )

    @classmethod
    def joined(cls, parts: Sequence[Answers]) -> Self:
        """One after the other; one at least. All have the same columns."""

        def joint(column: str) -> Any:
            columns = [getattr(part, column) for part in parts]
            return None if any(one is None for one in columns) else np.concatenate(columns)

        columns = {column: joint(column) for column in cls.__slots__ if column != "topic"}
        return cls(**columns, topic=parts[0].topic)

    @classmethod
    def of(cls, scored: Scored, features: int, topic: str = "observations") -> Self:
        """Reads the bytes. features: how many the version's reference describes; topic: of the observations.

        Raises DecodeError where the columns don't have one length, or hold what can't be.
        """
        n, rest = divmod(len(scored.ts), 8)
        widths = (
            (scored.offsets, 8),
            (scored.best, 2),
            (scored.score, 4),
            (scored.confidence or bytes(4 * n), 4),
            (scored.features or bytes(4 * n * features), 4 * features),
        )
        if rest or any(len(column) != n * width for column, width in widths):
            raise DecodeError(f"the columns of the scores don't have {n} values each, with {features} features")
        if not 0 <= scored.partition < MOST_PARTITIONS:
            raise DecodeError(f"the scores are of partition {scored.partition}, which can't be")
        confidence = np.frombuffer(scored.confidence, "<f4") if scored.confidence else None
        if confidence is not None and not np.isfinite(confidence).all():
            raise DecodeError("a confidence is not finite")
        return cls(
            np.full(n, scored.partition, np.int32),
            np.frombuffer(scored.offsets, "<i8"),
            np.frombuffer(scored.ts, "<i8"),
            np.frombuffer(scored.best, "<u2"),
            np.frombuffer(scored.score, "<f4"),
            confidence,
            np.frombuffer(scored.features, "<f4").reshape(n, features) if features and scored.features else None,
            topic,
        )
