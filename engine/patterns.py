"""A pattern over time: something, then something else within a span, per key, in the order of event time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from pydantic import BaseModel

from core.errors import UsageError
from engine.late import iso
from engine.table import K, Shard
from engine.timed import TimedTable
from engine.timers import Call, only

A = TypeVar("A")
B = TypeVar("B")

Waiting = tuple[list[tuple[int, A]], list[tuple[int, B]]]


class Pattern(TimedTable[K, Waiting[A, B]], Generic[K, A, B]):
    """key -> what waits for its second half, and second halves that wait for the watermark.

    Subclass it with the types of key, first and second half, a name and `within`. Both sides may be put by different
    agents of a partition. A second half is joined to the newest first half before it (or at the same time) that is at
    most `within` old and has none yet: on_match. A first half whose time is over without one: on_timeout. Both are
    decided once the watermark has passed, and so don't depend on the order of arrival.
    """

    within: ClassVar[timedelta]

    def __init__(self) -> None:
        super().__init__()
        self._within = self.within // timedelta(milliseconds=1)
        self._on_match: Callable[[Any, Any, Any], None] | None = None
        self._on_timeout: Callable[[Any, Any], None] | None = None

    def first(self, key: K, ts: int, value: A) -> None:
        """Notes a first half. ts: its event time, ms since epoch."""
        waiting: Waiting[A, B] = self._waiting(key)
        self[key] = (_sorted([*waiting[0], (ts, value)]), waiting[1])

    def then(self, key: K, ts: int, value: B) -> None:
        """Notes a second half."""
        waiting: Waiting[A, B] = self._waiting(key)
        self[key] = (waiting[0], _sorted([*waiting[1], (ts, value)]))

    def _waiting(self, key: K) -> Waiting[A, B]:
        return self.get(key) or ([], [])

    def on_match(self, call: Call) -> Call:
        """Declares what happens with a pair: `call(key, first, second)`."""
        self._on_match = only(self.name, self._on_match, call)
        return call

    def on_timeout(self, call: Call) -> Call:
        """Declares what happens with a first half that stays alone: `call(key, first)`."""
        self._on_timeout = only(self.name, self._on_timeout, call)
        return call

    def stored_type(self, *values: Any) -> Any:
        first, second = values
        for half in values:
            if isinstance(half, type) and issubclass(half, BaseModel):
                raise UsageError(f"{self.name!r} keeps msgspec structs and plain types, not {half.__qualname__}")
        return tuple[list[tuple[int, first]], list[tuple[int, second]]]  # type: ignore[valid-type]

    def due(self, value: Waiting[A, B]) -> int:
        firsts, seconds = value
        return 1 + min([ts for ts, _ in seconds] + [ts + self._within for ts, _ in firsts])

    def fire(self, key: K, at: int) -> None:
        firsts, seconds = self[key]
        pairs: list[tuple[A, B]] = []
        for ts, second in [half for half in seconds if half[0] < at]:
            before = [half for half in firsts if ts - self._within <= half[0] <= ts]
            if before:
                firsts.remove(before[-1])
                pairs.append((before[-1][1], second))
        alone = [first for ts, first in firsts if ts + self._within < at]
        firsts = [half for half in firsts if half[0] + self._within >= at]
        seconds = [half for half in seconds if half[0] >= at]
        if firsts or seconds:
            self[key] = (firsts, seconds)
        else:
            del self[key]
        for pair in pairs if self._on_match is not None else ():
            self._on_match(key, *pair)  # type: ignore[misc]
        for first in alone if self._on_timeout is not None else ():
            self._on_timeout(key, first)  # type: ignore[misc]

    def describe(self, shard: Shard, raw: bytes) -> Any:
        """For people: both sides, times in ISO."""
        firsts, seconds = self.decode(raw)
        return {
            "first": [{"ts": iso(ts), "value": msgspec.to_builtins(value)} for ts, value in firsts],
            "then": [{"ts": iso(ts), "value": msgspec.to_builtins(value)} for ts, value in seconds],
        }


def _sorted(halves: list[Any]) -> list[Any]:
    """By time; what has the same time in an order of its own, whatever the order of arrival."""
    return sorted(halves, key=lambda half: (half[0], msgspec.json.encode(half[1])))
