"""How sure one version was of the answers that it has given."""

from __future__ import annotations

from typing import NamedTuple

from models.scores import Scores


class Sureness(NamedTuple):
    """Sums, so that any two of them tell what came between."""

    answers: int = 0
    """Those that have a confidence."""
    total: float = 0.0
    """Sum of their confidences."""
    low: int = 0
    """Those with low confidence."""

    def and_of(self, scores: Scores) -> Sureness:
        """With these too; nothing changes where there is no confidence."""
        if scores.confidence is None:
            return self
        total = self.total + float(scores.confidence.sum())
        return Sureness(self.answers + len(scores), total, self.low + int(scores.low_confidence.sum()))

    def since(self, before: Sureness | None) -> Sureness:
        """What has come since then; all of it where `before` was another load of the version."""
        if before is None or before.answers > self.answers:
            return self
        return Sureness(self.answers - before.answers, self.total - before.total, self.low - before.low)
