"""A version's first answers, until they are its reference."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from models.drift import dependence
from models.drift.adwin import Cut
from models.drift.batch import Batch
from models.drift.fall import tells
from models.drift.reference import FEWEST, RECORDS, ConfidenceReference


class Collecting(msgspec.Struct):
    """At most 8 KB, and empty once there is a reference."""

    sample: bytes = b""
    """float32, in their order."""
    first: int = 0
    """Number of the first of them."""
    ts: int = 0
    """Event time of it."""

    def fold(self, batch: Batch, falls: list[Cut], given: Sequence[float]) -> tuple[int, ConfidenceReference | None]:
        """Takes the next answers. Returns how many, and the reference when it is complete with the last of them.

        falls: those of the batch, from which those are taken that end nothing; given: the manifest's sample. A fall
        ends it: what came before is the reference, if that is 500 at least, else the manifest's sample. Where there is
        none either, there is nothing yet that the fall could be held against, and it begins anew behind it.
        """
        taken = 0
        while True:
            if not self.sample:
                self.first, self.ts = batch.first + taken, int(batch.answers.ts[min(taken, len(batch) - 1)])
            end = min(taken + RECORDS - len(self), len(batch))
            fall = falls[0] if falls and falls[0].at <= end else None
            end = end if fall is None else fall.at
            self.sample += batch.confidence[taken:end].astype("<f4", copy=False).tobytes()
            taken, values = end, np.frombuffer(self.sample, "<f4")
            if fall is None:
                return taken, self._frozen(values, batch, taken) if len(values) == RECORDS else None
            before = values[: max(len(values) - fall.since, 0)]
            if len(before) >= FEWEST:
                if tells(fall, float(before.std(dtype=np.float64)), dependence.of_values(before)):
                    return taken, self._frozen(before, batch, taken)
            elif len(given) >= FEWEST:
                self.sample = b""
                sample = np.array(given, np.float32)
                return taken, ConfidenceReference.of(sample, self.first, batch.first + taken, "manifest", (0, 0))
            else:
                self.sample = b""
            falls.pop(0)

    def __len__(self) -> int:
        return len(self.sample) // 4

    def _frozen(self, values: NDArray[np.float32], batch: Batch, end: int) -> ConfidenceReference:
        self.sample = b""
        span = (self.ts, int(batch.answers.ts[end - 1]))
        return ConfidenceReference.of(values, self.first, batch.first + end, "first", span)
