"""The machine under a benchmark, as far as it isn't ours: what a hypervisor gave to other guests."""

from __future__ import annotations

from pathlib import Path
from typing import Final

STAT: Final = Path("/proc/stat")
_COUNTED: Final = 8
"""Columns of the first line that add up to all time; guests' time is within user's. Source: proc(5)."""
_STEAL: Final = 7


class Steal:
    """Share of this machine's time that was wanted here and given elsewhere: from 1 % on, figures tell of that too."""

    def __init__(self) -> None:
        self._last = _ticks()

    def since_last(self) -> float | None:
        """Percent since the last call, or since it was made; None where the kernel doesn't count it."""
        before, self._last = self._last, _ticks()
        spent = [now - then for then, now in zip(before, self._last, strict=True)]
        return round(100 * spent[_STEAL] / sum(spent), 1) if sum(spent) else None


def _ticks() -> list[int]:
    if not STAT.exists():
        return []
    return [int(field) for field in STAT.read_text().split("\n", 1)[0].split()[1 : 1 + _COUNTED]]
