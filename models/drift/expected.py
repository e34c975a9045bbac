"""How good a version ought to be, before labels come: what its own calibrated probabilities promise."""

from __future__ import annotations

import msgspec

from models.drift.answers import Answers
from models.drift.condition import Change


class ExpectedState(msgspec.Struct):
    """What changes with the stream."""


class ExpectedPerformance:
    """Changes of kind `performance_expected`, subject NAME@VERSION: a warning, never more. Make it for classifiers
    whose manifest has a calibration alone: it believes their probabilities."""

    def __init__(self, subject: str, labels: int, state: ExpectedState | None = None) -> None:
        """subject: NAME@VERSION. labels: of the version, two at least; an AUC is there for two alone."""
        self.state = state or ExpectedState()

    def fold(self, answers: Answers) -> list[Change]:
        """The next answers of the version."""
        raise NotImplementedError

    def page(self) -> dict[str, object]:
        """For people, JSON, each figure marked as estimated."""
        raise NotImplementedError
