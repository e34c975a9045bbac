"""Whether a version is as good as it was, once labels come: figures by event time, and a judge of them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from models.drift.condition import Change
from models.drift.outcomes import Outcome
from models.quality import Performance


class PerformanceState(msgspec.Struct):
    """What changes with the labels."""


class PerformanceDrift:
    """Changes of kind `performance_drift`, subject NAME@VERSION."""

    def __init__(
        self, subject: str, labels: int, performance: Performance | None = None, state: PerformanceState | None = None
    ) -> None:
        """subject: NAME@VERSION. labels: of the version, 0 of regressors. performance: the manifest's."""
        self.state = state or PerformanceState()

    def judge(self, outcomes: Sequence[Outcome]) -> list[Change]:
        """What came of predictions, in the order in which it became known."""
        raise NotImplementedError

    def page(self) -> dict[str, object]:
        """For people, JSON: the figures of each window as they are now, corrections included, and the reference's."""
        raise NotImplementedError
