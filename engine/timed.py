"""Tables whose values are due at a time: what timers, windows and patterns are kept in."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, ClassVar, cast

from core.errors import UsageError
from engine.batch import Slice, current_slice
from engine.table import RESERVED, K, KeyValueShard, Shard, Table, V, Values

if TYPE_CHECKING:
    from engine.store import PartitionStore
    from engine.task import PartitionTask


class Time(StrEnum):
    """Whose time says that something is due."""

    EVENT = "event"
    """The partition's watermark."""
    PROCESSING = "processing"
    """The worker's clock."""


class TimedShard(KeyValueShard):
    """Values, and in memory when each is due, earliest first.

    An entry may be early or stale, never late or missing: what it says is compared with the value when its time comes.
    """

    def __init__(self, name: str, store: PartitionStore, due: Callable[[bytes, bytes], int]) -> None:
        super().__init__(name, store)
        self._due = due
        self._entries = [(due(key, raw), key) for key, raw in store.scan(name) if not key.startswith(RESERVED)]
        heapify(self._entries)
        self._earliest = {key: at for at, key in self._entries}
        """Key -> its earliest entry: a value that is due later needs no other one. One that moves with every event
        would pile them up."""

    def earliest(self, limit: int) -> bool:
        """Whether something may be due by then."""
        return bool(self._entries) and self._entries[0][0] <= limit

    def first(self, limit: int) -> tuple[int, bytes] | None:
        """What is due first, if that is by the limit. It stays until its value has gone or moved."""
        entries = self._entries
        while entries and entries[0][0] <= limit:
            at, key = entry = entries[0]
            raw = self.get(key)
            due = None if raw is None else self._due(key, raw)
            if due == at:
                return entry
            self.put_off(entry)
            if due is not None:
                self.expect((due, key))
        return None

    def put_off(self, entry: tuple[int, bytes]) -> None:
        """Takes the first entry out; expect() brings it back."""
        while self._entries and self._entries[0] == entry:
            heappop(self._entries)
        if self._earliest.get(entry[1]) == entry[0]:
            del self._earliest[entry[1]]

    def expect(self, entry: tuple[int, bytes]) -> None:
        """Looks at a key at a time, unless it is looked at before anyway."""
        at, key = entry
        if at < self._earliest.get(key, at + 1):
            self._earliest[key] = at
            heappush(self._entries, entry)

    def put_many(self, s: Slice[Any], values: Values) -> None:
        super().put_many(s, values)
        for key, value in values.items():
            if value is not None:
                self.expect((self._due(key, value), key))

    def rollback(self, dropped: Iterable[Slice[Any]], kept: Iterable[Slice[Any]]) -> None:
        dropped = list(dropped)
        super().rollback(dropped, kept)
        for key in {key for s in dropped for shard, change in s.changed if shard is self for key in change}:
            if (raw := self.get(key)) is not None:
                self.expect((self._due(key, raw), key))


class TimedTable(Table[K, V]):
    """A table that is called when a value's time has come."""

    time: ClassVar[Time] = Time.EVENT

    @abstractmethod
    def due(self, value: V) -> int:
        """When fire() must be called for a value, ms since epoch."""

    @abstractmethod
    def fire(self, key: K, at: int) -> None:
        """The value of a key is due: removes it or makes it due later, and does what is to be done."""

    @property
    def order(self) -> int:
        """Of what is due at the same time, tables that were made earlier fire earlier."""
        return list(Table.declared).index(self.name)

    def shard(self, store: PartitionStore) -> Shard:
        return TimedShard(self.name, store, lambda key, raw: self.due(self.decode(raw, key)))

    def copied(self, store: PartitionStore) -> Shard:
        """Without what is due: that would be a look at every value."""
        return KeyValueShard(self.name, store)

    def __setitem__(self, key: K, value: V) -> None:
        s = current_slice()
        if isinstance(s, Firing):
            s.check(self, self.due(value))
        cast(Any, super()).__setitem__(key, value)


class Fired:
    """What a firing has in the place of a record: outputs say by it where they come from (TABLE/PARTITION/TIME)."""

    __slots__ = ("key", "offset", "timestamp", "value")
    headers = ()

    def __init__(self, key: bytes, at: int, value: bytes | None) -> None:
        self.key = key
        self.offset = self.timestamp = at
        self.value = value


class Firing(Slice[Any]):
    """The work on one value that is due: its writes and outputs count together, like those of a record."""

    __slots__ = ("table",)

    def __init__(self, task: PartitionTask, table: TimedTable[Any, Any], key: bytes, at: int, raw: bytes) -> None:
        super().__init__(task, table.name, [Fired(key, at, raw)])
        self.table = table

    def check(self, table: TimedTable[Any, Any], due: int) -> None:
        """Refuses what would be due before the end of this firing: it could go on for ever, or out of order."""
        if (due, table.order) <= (self.first, self.table.order) and table.time == self.table.time:
            raise UsageError(
                f"{self.table.name!r} fires at {self.first} and sets something in {table.name!r} that is due at {due}: "
                "only what is due later may be set (at the same time: in a table that was made later)"
            )
