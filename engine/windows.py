"""Event-time windows: aggregates of a key over tumbling, sliding and session windows, kept as table values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, ClassVar, Generic, NamedTuple

import msgspec

from core.errors import UsageError
from engine.batch import current_slice
from engine.late import iso
from engine.schema import Migration
from engine.table import K, Shard, V
from engine.timed import Firing, TimedTable
from engine.timers import Call, only


class Window(NamedTuple):
    """A span of event time, ms since epoch; its end is no longer in it."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size side by side, aligned to the epoch."""

    size: timedelta

    def __post_init__(self) -> None:
        _ms(self.size)

    def of(self, ts: int) -> list[Window]:
        """The windows of a time."""
        size = _ms(self.size)
        start = ts - ts % size
        return [Window(start, start + size)]


@dataclass(frozen=True, slots=True)
class Sliding:
    """Windows of one size, a new one every slide: they overlap, and an event is in several."""

    size: timedelta
    slide: timedelta

    def __post_init__(self) -> None:
        if _ms(self.slide) > _ms(self.size):
            raise UsageError(f"windows of {self.size} every {self.slide} would leave events out")

    def of(self, ts: int) -> list[Window]:
        """The windows of a time, the earliest first."""
        size, slide = _ms(self.size), _ms(self.slide)
        last = ts - ts % slide
        first = last - (size - 1 - ts % slide) // slide * slide
        return [Window(start, start + size) for start in range(first, last + 1, slide)]


@dataclass(frozen=True, slots=True)
class Session:
    """Windows that last as long as a key's events follow each other within less than the gap."""

    gap: timedelta

    def __post_init__(self) -> None:
        _ms(self.gap)

    def of(self, ts: int) -> list[Window]:
        """The window of an event that is alone."""
        return [Window(ts, ts + _ms(self.gap))]


class Windows(TimedTable[K, list[tuple[int, int, V]]], Generic[K, V]):
    """key -> its open windows as (start, end, aggregate), by start.

    Subclass it with key and aggregate types, a name, `windows` and aggregate(). A window opens with its first event and
    closes when the watermark reaches its end: then nothing can come that belongs to it. on_close says what happens.
    """

    windows: ClassVar[Tumbling | Sliding | Session]

    def __init__(self) -> None:
        super().__init__()
        self._on_close: Callable[[Any, Window, Any], None] | None = None
        if isinstance(self.windows, Session) and type(self).merge is Windows.merge:
            raise UsageError(f"{self.name!r} has session windows, which an event can join: it needs a merge()")

    def aggregate(self, value: V | None, event: Any) -> V:
        """The aggregate with one more event; None is that of an empty window."""
        raise NotImplementedError

    def merge(self, earlier: V, later: V) -> V:
        """The aggregate of two session windows that an event has joined."""
        raise NotImplementedError

    def add(self, key: K, ts: int, event: Any) -> None:
        """Takes an event into each of its windows. ts: its time, ms since epoch.

        Only where late events have been taken out: in an agent with event_time=True, or when something fires.
        """
        s = current_slice()
        if s.marks is None and not isinstance(s, Firing):
            raise UsageError(
                f"{self.name!r} takes events in event time: declare the agent with @agent(..., event_time=True)"
            )
        opened = self.get(key) or []
        for window in self.windows.of(ts):
            opened = self._taken(opened, window, event)
        self[key] = opened

    def on_close(self, call: Call) -> Call:
        """Declares what happens with a closed window: `call(key, window, aggregate)`, once for each. It may read and
        write tables, and send outputs (`current_slice().send`)."""
        self._on_close = only(self.name, self._on_close, call)
        return call

    def stored_type(self, value: Any) -> Any:
        return list[tuple[int, int, value]]

    def migrated(self, migration: Migration, value: Any) -> Any:
        """A migration is given each aggregate."""
        return [(start, end, migration(aggregate)) for start, end, aggregate in value]

    def due(self, value: list[tuple[int, int, V]]) -> int:
        return min(end for _, end, _ in value)

    def fire(self, key: K, at: int) -> None:
        opened = self[key]
        if left := [window for window in opened if window[1] > at]:
            self[key] = left
        else:
            del self[key]
        if self._on_close is not None:
            for start, end, value in opened:
                if end <= at:
                    self._on_close(key, Window(start, end), value)

    def describe(self, shard: Shard, raw: bytes) -> Any:
        """For people: the open windows, times in ISO."""
        return [
            {"start": iso(start), "end": iso(end), "value": msgspec.to_builtins(value)}
            for start, end, value in self.decode(raw)
        ]

    def _taken(self, opened: list[tuple[int, int, V]], window: Window, event: Any) -> list[tuple[int, int, V]]:
        start, end = window
        if isinstance(self.windows, Session):
            joined = [w for w in opened if w[0] < end and start < w[1]]
        else:
            joined = [w for w in opened if w[0] == start]
        value: V | None = None
        for w in joined:
            value = w[2] if value is None else self.merge(value, w[2])
            start, end = min(start, w[0]), max(end, w[1])
        now = [w for w in opened if w not in joined]
        now.append((start, end, self.aggregate(value, event)))
        now.sort(key=_span)
        return now


def _span(window: tuple[int, int, Any]) -> tuple[int, int]:
    return window[:2]


@cache
def _ms(span: timedelta) -> int:
    if span < timedelta(milliseconds=1):
        raise UsageError(f"a window needs a length of at least a millisecond, not {span}")
    return span // timedelta(milliseconds=1)
