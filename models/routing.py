"""Who answers for one model: the active version, a canary for its share of the sessions, shadows for nobody."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from models.version import LiveVersion

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
"""The constants of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Replaced as a whole, so that a flip is one assignment."""

    model: str = ""
    active: LiveVersion | None = None
    canary: LiveVersion | None = None
    share: float = 0.0
    """Of the sessions, which the canary answers for."""
    shadows: tuple[LiveVersion, ...] = ()
    paired: bool = False
    """Whether the active version is asked about the canary's events too, to see whether they agree."""

    def __iter__(self) -> Iterator[LiveVersion]:
        """All that compute."""
        yield from (version for version in (self.active, self.canary, *self.shadows) if version is not None)

    @property
    def compares(self) -> bool:
        """Whether some events are asked of a second version."""
        return bool(self.shadows) or (self.paired and self.canary is not None)

    def canaries(self, sessions: Sequence[bytes]) -> NDArray[np.bool_]:
        """(n,): which of these the canary answers for."""
        if self.canary is None:
            return np.zeros(len(sessions), np.bool_)
        return sides(self.model, sessions) < self.share


def sides(model: str, sessions: Sequence[bytes]) -> NDArray[np.float64]:
    """(n,) in [0, 1): where each session stands. It never moves, so that a share that grows only adds sessions; and it
    has nothing to do with where the session stands in another model, or with its partition."""
    salt = crc32(model.encode())
    raw = np.array([crc32(session, salt) for session in sessions], np.uint64)
    # CRC-32 is linear: what differs in little would stay in one neighbourhood.
    mixed = (raw + np.uint64(salt << 32)) * _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX[0]
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX[1]
    return (mixed ^ (mixed >> np.uint64(31))).astype(np.float64) / 2.0**64
