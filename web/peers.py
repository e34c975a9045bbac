"""What the other workers report of themselves: each is asked once a second at most, for all who want to know."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final

import msgspec
from yarl import URL

from web.errors import RequestError
from web.history import LENGTH, Sample
from web.owners import Owners
from web.report import Report

FRESH_S: Final = 0.7
"""Reports that are no older are not asked for again."""

_decode = msgspec.json.Decoder(Report).decode


class Peer:
    """One other worker."""

    def __init__(self, url: URL) -> None:
        self.url = url
        self.partitions: list[int] = []
        """Those that the group has given it."""
        self.report: Report | None = None
        """Its newest."""
        self.trouble: str | None = None
        """Why it doesn't report now."""
        self.samples: deque[Sample] = deque(maxlen=LENGTH)

    @property
    def newest(self) -> int:
        """The second of its newest sample."""
        return self.samples[-1].t if self.samples else 0

    def since(self, t: int) -> list[Sample]:
        """Its samples after a second, oldest first."""
        return [sample for sample in self.samples if sample.t > t]


class Peers:
    """All workers of the application but this one, as the group's last assignment names them."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._known: dict[URL, Peer] = {}
        self._lock = asyncio.Lock()
        self._looked = -FRESH_S

    async def look(self, authorization: str | None) -> list[Peer]:
        """What they report now; one that doesn't answer keeps what it reported last, and has a trouble."""
        async with self._lock:
            if time.monotonic() - self._looked >= FRESH_S:
                others = self._owners.others()
                self._known = {url: self._known.get(url) or Peer(url) for url in others}
                for url, peer in self._known.items():
                    peer.partitions = others[url]
                await asyncio.gather(*(self._ask(peer, authorization) for peer in self._known.values()))
                self._looked = time.monotonic()
            return list(self._known.values())

    async def _ask(self, peer: Peer, authorization: str | None) -> None:
        try:
            body = await self._owners.report(peer.url, peer.newest, authorization)
            peer.report = _decode(body)
        except RequestError as error:
            peer.trouble = str(error)
        except msgspec.MsgspecError:
            peer.trouble = "reports in a form that this release doesn't know"
        else:
            peer.trouble = None
            peer.samples.extend(sample for sample in peer.report.samples if sample.t > peer.newest)
