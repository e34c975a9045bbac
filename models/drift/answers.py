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

    def __len__(self) -> int:
        return len(self.ts) // 8

    def fault(self, features: int) -> DecodeError | None:
        """What is wrong with its columns' lengths, or its partition. features: how many the version's reference
        describes."""
        n = len(self)
        odd = (
            len(self.ts) != 8 * n
            or len(self.offsets) != 8 * n
            or len(self.best) != 2 * n
            or len(self.score) != 4 * n
            or (self.confidence and len(self.confidence) != 4 * n)
            or (self.features and len(self.features) != 4 * n * features)
        )
        if odd:
            return DecodeError(f"the columns of the scores don't have {n} values each, with {features} features")
        if not 0 <= self.partition < MOST_PARTITIONS:
            return DecodeError(f"the scores are of partition {self.partition}, which can't be")
        return None


def faults(scored: Sequence[Scored], features: int) -> dict[int, DecodeError]:
    """What is wrong with some of these, by their place. features: as in Scored.fault()."""
    found = {i: error for i, one in enumerate(scored) if (error := one.fault(features)) is not None}
    if not _finite(b"".join(one.confidence for i, one in enumerate(scored) if i not in found)):
        for i, one in enumerate(scored):
            if i not in found and not _finite(one.confidence):
                found[i] = DecodeError("a confidence is not finite")
    return found


def _finite(column: bytes) -> bool:
    return bool(np.isfinite(np.frombuffer(column, "<f4")).all())


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

    def place(self, source: str) -> int:
        """Which answer an observation got: source(place) is where it stands."""
        _, partition, offset = source.rsplit("/", 2)
        return int(np.flatnonzero((self.offset == int(offset)) & (self.partition == int(partition)))[-1])

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
    def of(cls, scored: Sequence[Scored], features: int, topic: str = "observations") -> Self:
        """Reads the bytes of records without faults, one after the other. features: how many the version's reference
        describes; topic: of the observations."""

        def column(name: str, dtype: str) -> Any:
            return np.frombuffer(b"".join([getattr(one, name) for one in scored]), dtype)

        counts = list(map(len, scored))
        confident, described = (all(getattr(one, name) for one in scored) for name in ("confidence", "features"))
        return cls(
            np.repeat(np.array([one.partition for one in scored], np.int32), counts),
            column("offsets", "<i8"),
            column("ts", "<i8"),
            column("best", "<u2"),
            column("score", "<f4"),
            column("confidence", "<f4") if confident else None,
            column("features", "<f4").reshape(-1, features) if features and described else None,
            topic,
        )
