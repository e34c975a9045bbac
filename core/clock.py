"""The wall clock, as far as it has ever been."""

from __future__ import annotations

import time


class _Clock:
    def __init__(self) -> None:
        self._ahead = time.time() - time.monotonic()

    def latest_ms(self) -> float:
        now = time.monotonic()
        self._ahead = max(self._ahead, time.time() - now)
        return 1e3 * (now + self._ahead)


latest_ms = _Clock().latest_ms
"""ms since epoch. Where the clock is set back it goes on from where it was: events of right now would be ahead of it
else, and the watermark would stand still until it has caught up."""
