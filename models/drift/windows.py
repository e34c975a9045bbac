"""Outcomes summed by event time, in a bounded number of windows; late ones and corrections find theirs."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import Any, Final

import msgspec

from models.drift.outcomes import Outcome
from models.drift.tally import Tally, summed

KEPT: Final = 24
"""Windows."""
WORST: Final = 5
"""Outcomes of each that are kept as examples."""

_start = attrgetter("start")


class Window(msgspec.Struct, array_like=True):
    """Outcomes of observations from start to end."""

    start: int
    """Event time, ms since epoch."""
    end: int
    """Not among them."""
    sums: list[Any]
    """As models/drift/tally.py has them."""
    judged: bool = False
    """Whether it has been judged, or came too late for it."""
    wrong: list[tuple[float, str]] = msgspec.field(default_factory=list)
    """The worst outcomes, worst first: how sure the wrong answer was, or how far off the value; and the source."""


class Windows:
    """Those of one version. The oldest that has been judged makes room, else the two closest together become one."""

    def __init__(self, windows: list[Window], tally: Tally, window_ms: int) -> None:
        """windows: by time, none overlapping another; changed in place."""
        self._windows = windows
        self._tally = tally
        self._window_ms = window_ms

    def add(self, outcome: Outcome, frontier: int) -> bool:
        """Sums up one that is usable; False where its time isn't kept any more. frontier: up to where all is judged."""
        window = self._of(outcome.ts, frontier)
        if window is None:
            return False
        self._tally.add(window.sums, outcome)
        self._note(window, outcome)
        return True

    def _note(self, window: Window, outcome: Outcome) -> None:
        """Whether it is among the worst; a correction takes it out."""
        if self._tally.labels:
            off = max(outcome.scores)
            if outcome.scores.index(off) == outcome.label:
                return
        else:
            off = abs(outcome.scores[0] - float(outcome.truth or 0.0))
        if outcome.weight < 0:
            window.wrong = [one for one in window.wrong if one[1] != outcome.source]
        elif len(window.wrong) < WORST or off > window.wrong[-1][0]:
            window.wrong = worst([*window.wrong, (off, outcome.source)])

    def _of(self, ts: int, frontier: int) -> Window | None:
        windows = self._windows
        place, found = self._place(ts)
        if found is None and len(windows) >= KEPT:
            if not place:
                return None
            self._make_room()
            place, found = self._place(ts)
        if found is not None:
            return found
        start = ts // self._window_ms * self._window_ms
        end = start + self._window_ms
        if place < len(windows):
            end = min(end, windows[place].start)
        if place:
            start = max(start, windows[place - 1].end)
        window = Window(start, end, self._tally.empty(), judged=end <= frontier)
        windows.insert(place, window)
        return window

    def _place(self, ts: int) -> tuple[int, Window | None]:
        """Where a window of this time is to be, and the one that has it already."""
        place = bisect_right(self._windows, ts, key=_start)
        before = self._windows[place - 1] if place else None
        return place, before if before is not None and ts < before.end else None

    def _make_room(self) -> None:
        windows = self._windows
        if windows[0].judged:
            del windows[0]
            return
        place = min(range(len(windows) - 1), key=lambda i: windows[i + 1].end - windows[i].start)
        one, other = windows[place : place + 2]
        both = Window(one.start, other.end, summed([one.sums, other.sums]), False, worst([*one.wrong, *other.wrong]))
        windows[place : place + 2] = [both]


def worst(wrong: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """The worst of them, worst first; the earlier of equal ones."""
    return sorted(wrong, key=lambda one: -one[0])[:WORST]
