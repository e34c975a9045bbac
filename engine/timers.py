"""Timers: a call at a time, exactly once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from core.errors import UsageError
from engine.table import Shard
from engine.timed import TimedTable

Call = TypeVar("Call", bound=Callable[..., None])


class Timers(TimedTable[str, int]):
    """key -> when it fires. Subclass it with a name (and `time`), set timers while events are worked on, and say with
    on_fire what happens then.

    A timer is a table value: it survives restarts and moves with its partition. Its removal, and what the call writes
    and sends, are committed together. Key timers by the record's key where you can: a key never fires while an event
    of it is at work.
    """

    def __init__(self) -> None:
        super().__init__()
        self._on_fire: Callable[[str, int], None] | None = None

    def set(self, key: str, at: int) -> None:
        """Fires at a time, ms since epoch, instead of when it was to fire before. A time that has passed is due now."""
        self[key] = at

    def cancel(self, key: str) -> None:
        """Doesn't fire."""
        if key in self:
            del self[key]

    def on_fire(self, call: Call) -> Call:
        """Declares what happens: `call(key, at)`, with the time that was set. It may read and write tables, send
        outputs (`current_slice().send`), and set timers that are due later."""
        self._on_fire = only(self.name, self._on_fire, call)
        return call

    def due(self, value: int) -> int:
        return value

    def fire(self, key: str, at: int) -> None:
        del self[key]
        if self._on_fire is not None:
            self._on_fire(key, at)

    def describe(self, shard: Shard, raw: bytes) -> Any:
        """For people: when it fires, ISO."""
        return datetime.fromtimestamp(self.decode(raw) / 1e3, UTC).isoformat(timespec="milliseconds")


def only(name: str, before: Callable[..., None] | None, call: Call) -> Call:
    """The one call of a table. Raises UsageError for a second one, and for one that would have to be awaited."""
    if before is not None:
        raise UsageError(f"{name!r} already calls {before.__qualname__}: one call has all that happens")
    if iscoroutinefunction(call):
        raise UsageError(f"{call.__qualname__} is a coroutine; what {name!r} calls must not wait: use a plain function")
    return call
