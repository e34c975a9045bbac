"""Stop strings in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class Stops:
    """Lets text through that can't be part of a stop string any more."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._kept = ""
        self.met = False
        """One has come: everything before it has been let through, and nothing more will be."""

    def push(self, text: str) -> str:
        """What may be shown now."""
        if self.met or not self._stops:
            return "" if self.met else text
        self._kept += text
        found = min((at for at in map(self._kept.find, self._stops) if at >= 0), default=-1)
        if found >= 0:
            self.met = True
            shown, self._kept = self._kept[:found], ""
            return shown
        keep = max(self._beginning(stop) for stop in self._stops)
        cut = len(self._kept) - keep
        shown, self._kept = self._kept[:cut], self._kept[cut:]
        return shown

    def rest(self) -> str:
        """What was kept back, at the end."""
        shown, self._kept = self._kept, ""
        return shown

    def _beginning(self, stop: str) -> int:
        """How many of the last characters a stop string may begin with."""
        return next(
            (size for size in range(min(len(stop) - 1, len(self._kept)), 0, -1) if stop.startswith(self._kept[-size:])),
            0,
        )
