"""What becomes of a version whose confidence falls, as alerts and deployments tell it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from core.events import Alert, Deployment

REFUSED: Final = "request_refused"


@dataclass(frozen=True, slots=True)
class Told:
    """Something that was written to a topic."""

    at: int
    """When, ms since epoch."""
    alert: Alert | None = None
    deployment: Deployment | None = None


class Seen(NamedTuple):
    """A window that made the alarm, out of its evidence."""

    records: int
    first: int
    last: int
    """Event times, ms since epoch."""
    before: float
    now: float
    """Mean confidence of the reference and of the window."""
    distance: float
    critical: float


class Story:
    """Read from two topics, in any order. version: the one that is expected to drift."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.alarm: Told | None = None
        """The alert that a drift of the version is confirmed."""
        self.answer: Told | None = None
        """The deployment that answers it."""
        self.candidate: Told | None = None
        """The deployment with the retrained version as a canary."""
        self.ended: Told | None = None
        """The alert that the canary was promoted or rolled back."""
        self.promoted: Told | None = None
        """The deployment in which it answers alone."""
        self.refused: list[str] = []
        """Requests that came to nothing, and why."""
        self._moved = asyncio.Event()

    def alerted(self, alert: Alert, at: int) -> None:
        """An alert has been read."""
        told = Told(at, alert=alert)
        version = alert.subject.partition("@")[2]
        if alert.kind == "drift" and alert.state == "opened" and version == self.version:
            self.alarm = self.alarm or told
        elif alert.kind in ("canary_promoted", "canary_rolled_back"):
            self.ended = self.ended or told
        elif alert.kind == REFUSED:
            self.refused.append(alert.title)
        self._moved.set()

    def deployed(self, deployment: Deployment, at: int) -> None:
        """A deployment has been read."""
        told = Told(at, deployment=deployment)
        if deployment.author == "drift":
            self.answer = self.answer or told
        elif deployment.canary is not None:
            self.candidate = self.candidate or told
        elif deployment.author == "limits" and deployment.active == self.retrained:
            self.promoted = self.promoted or told
        self._moved.set()

    @property
    def seen(self) -> Seen | None:
        """What the alarm was made of."""
        if self.alarm is None or self.alarm.alert is None:
            return None
        evidence: dict[str, Any] = self.alarm.alert.evidence
        window, reference = evidence["window"], evidence["reference"]
        return Seen(
            window["records"],
            window["from_ts"],
            window["to_ts"],
            reference["mean"],
            window["mean"],
            evidence["statistic"],
            evidence["critical"],
        )

    @property
    def retrained(self) -> str | None:
        """The version that is tried, or was."""
        deployment = self.candidate.deployment if self.candidate else None
        return deployment.canary.version if deployment and deployment.canary else None

    @property
    def reason(self) -> str:
        """What its trainer says of it."""
        deployment = self.candidate.deployment if self.candidate else None
        return (deployment.reason if deployment else None) or "nothing is said of it"

    async def until(self, happened: Callable[[], bool], within_s: float) -> bool:
        """Waits for it. Returns whether it has happened: not if a request is refused before, or it takes too long."""
        refused = len(self.refused)
        try:
            async with asyncio.timeout(within_s):
                while not happened() and len(self.refused) == refused:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            pass
        return happened()
