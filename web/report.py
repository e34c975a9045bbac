"""What a worker says of itself, to a person's browser and to the other workers."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import msgspec

from engine.app import App
from web.health import Health
from web.history import History, Sample


class PartitionReport(msgspec.Struct, frozen=True):
    """A partition on its worker."""

    number: int
    open: bool
    lag: int | None = None
    """Records of its topics that are not committed; None while that isn't known."""
    reason: str = ""
    """Why it isn't open."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One worker, now. A newer release may add fields, an older one may lack some."""

    worker: str
    started: int
    """ms since epoch."""
    ready: bool = False
    reasons: list[str] = []
    warnings: list[str] = []
    partitions: list[PartitionReport] = []
    models: dict[str, dict[str, Any]] = {}
    """As /models tells them."""
    events: int = 0
    """Committed since it started."""
    dead_letters: dict[str, int] = {}
    """Error class -> records, since it started."""
    samples: list[Sample] = []
    """Seconds after the one that was asked for, oldest first."""


class Reporter:
    """Makes this worker's reports."""

    def __init__(self, app: App, history: History) -> None:
        self._app = app
        self._health = Health(app)
        self._history = history
        self._started = round(time.time() * 1e3)

    def report(self, after: int) -> Report:
        """After: the second of the newest sample that the asker has."""
        engine, meters = self._app.engine, self._app.engine.meters
        dead, lag = Counter[str](), Counter[int]()
        for (_, error), count in meters.dead_letters.items():
            dead[error] += count
        for partitions in engine.pulse.lag().values():
            lag.update(partitions)
        reasons = self._health.reasons()
        return Report(
            worker=engine.name,
            started=self._started,
            ready=not reasons,
            reasons=reasons,
            warnings=self._health.warnings(),
            partitions=[
                PartitionReport(number, task.open, lag.get(number), task.reason)
                for number, task in sorted(engine.tasks.items())
            ],
            models=engine.models.status(),
            events=meters.committed.total(),
            dead_letters=dead,
            samples=self._history.since(after),
        )
