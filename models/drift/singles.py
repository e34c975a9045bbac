"""Answers with low confidence that a person is told of one by one, as many a minute as the deployment asks for."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from models.drift.answers import Answers

MINUTE_MS: Final = 60_000


class Singles(msgspec.Struct, array_like=True):
    """How many of this minute have been told."""

    minute: int = -1
    told: int = 0
    kept_back: int = 0
    """That were not, since the last one that was."""

    def pick(self, answers: Answers, below: float, most: float, now: int) -> list[tuple[int, int]]:
        """Places of those to tell, each with how many before it were kept back.

        below: the version's threshold of low confidence; most: a minute, 0 for none; now: when the scores were
        written, ms since epoch: a stream that is replayed has no more minutes than the replay.
        """
        if most <= 0 or answers.confidence is None:
            return []
        if now // MINUTE_MS > self.minute:
            self.minute, self.told = now // MINUTE_MS, 0
        picked = []
        for place in np.flatnonzero(answers.confidence < np.float32(below)).tolist():
            if self.told < most:
                picked.append((place, self.kept_back))
                self.told, self.kept_back = self.told + 1, 0
            else:
                self.kept_back += 1
        return picked
