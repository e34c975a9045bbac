"""One version makes room for the next: what stands between both, so that the first can be brought back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from core.errors import NoRoomError
from models.routing import Routing
from models.version import LiveVersion

DRAIN_S: Final = 30.0
"""Until what has begun on a version that leaves must be done."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """While it lasts nobody answers, and the model's events wait."""

    before: Routing
    """Who answered."""
    kept: list[LiveVersion]
    """Those beside it that stay in memory."""

    def routing(self, active: LiveVersion) -> Routing:
        """Who answers once the active version is back: as before, without those that have gone."""
        before = self.before
        canary = before.canary if before.canary in self.kept else None
        return Routing(
            before.model,
            active,
            canary,
            before.share if canary else 0.0,
            tuple(shadow for shadow in before.shadows if shadow in self.kept),
            before.paired,
        )


async def drained(versions: Iterable[LiveVersion], within_s: float = DRAIN_S) -> None:
    """Waits until nothing of these is in memory. Raises NoRoomError after the limit, in seconds."""
    leaving = list(versions)
    try:
        async with asyncio.timeout(within_s):
            for version in leaving:
                await version.freed.wait()
    except TimeoutError:
        still = ", ".join(version.course.who for version in leaving if not version.freed.is_set())
        raise NoRoomError(f"{still} still computes for somebody after {within_s:g} s, and makes no room") from None
