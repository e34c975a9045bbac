"""What versions hold of a device's memory: never more than is declared, the two sides of a swap included."""

from __future__ import annotations

import threading
from typing import Final

from core.errors import NoRoomError

SCRATCH: Final = 64 << 20
"""Bytes that a version takes beside its weights, where it hasn't been measured: activations, and the workspaces of the
libraries that compute. A guess."""


class Share:
    """What one version holds, or is about to. Free it once."""

    def __init__(self, budget: Budget, who: str, size: int) -> None:
        self.who = who
        self.size = size
        """Bytes."""
        self._budget = budget

    @property
    def most(self) -> int | None:
        """Bytes that it could grow to beside the others; None: no bound."""
        return None if self._budget.limit is None else max(self.size, self._budget.left + self.size)

    def measured(self, identity: str, size: int) -> None:
        """It has turned out to take so many bytes, now and whenever it is loaded again."""
        self.size = size
        self._budget.known[identity] = size

    def free(self) -> None:
        """It holds nothing any more."""
        self._budget.drop(self)


class Budget:
    """Of one device. Shares are taken on the event loop, and freed wherever a version is closed."""

    def __init__(self, limit: int | None = None) -> None:
        """limit: bytes; None: whatever is there, which nobody keeps a count of but for people."""
        self.limit = limit
        self.known: dict[str, int] = {}
        """Identity -> bytes that it has been measured to take."""
        self._shares: list[Share] = []
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Bytes of all shares."""
        with self._lock:
            return sum(share.size for share in self._shares)

    @property
    def left(self) -> int:
        """Bytes until the limit is met; 0 beyond it, or without one."""
        return 0 if self.limit is None else max(0, self.limit - self.held)

    def need(self, identity: str, weights: int) -> int:
        """Bytes that a version will take: as measured, else as estimated from the bytes of its weights."""
        return self.known.get(identity, weights + SCRATCH)

    def fits(self, need: int, leaving: int = 0) -> bool:
        """Whether there is room for so many bytes, once others have left."""
        return self.limit is None or self.held - leaving + need <= self.limit

    def reserve(self, who: str, need: int) -> Share:
        """Takes a share. Raises NoRoomError, naming what there is and who holds it."""
        if not self.fits(need):
            raise NoRoomError(f"{who} doesn't fit: {self.told(need)}")
        return self.take(who, need)

    def take(self, who: str, need: int) -> Share:
        """Takes a share whatever is held."""
        share = Share(self, who, need)
        with self._lock:
            self._shares.append(share)
        return share

    def drop(self, share: Share) -> None:
        """Forgets a share."""
        with self._lock:
            if share in self._shares:
                self._shares.remove(share)

    def told(self, need: int) -> str:
        """Why a need isn't met, in words."""
        with self._lock:
            holders = ", ".join(f"{share.who} {_mb(share.size)}" for share in self._shares) or "nobody any"
        limit = "as much as there is" if self.limit is None else _mb(self.limit)
        return f"it needs {_mb(need)} of the device's memory, versions may hold {limit}, and {holders} of it"


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
