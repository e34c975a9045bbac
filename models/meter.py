"""What one version has computed since it went live here."""

from __future__ import annotations

from typing import Final

from core.histogram import Histogram

ANSWER_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
ROWS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 4000.0)


class ModelMeter:
    """Counts calls, not rows: one call has the rows of many events."""

    def __init__(self) -> None:
        self.seconds = Histogram(ANSWER_S)
        """From a call to its answer: waiting for the inference thread is part of it."""
        self.rows = Histogram(ROWS)
        """Of each call that was answered."""
        self.failures = 0
        """Calls that were not."""
        self.answers = 0
        """Events with a usable score."""
        self.broken = 0
        """Events without one."""

    def answered(self, rows: int, broken: int, seconds: float) -> None:
        """A call has its answer, in which some rows are of no use."""
        self.answers += rows - broken
        self.broken += broken
        self.seconds.observe(seconds)
        self.rows.observe(rows)
