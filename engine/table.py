"""Tables: a dict a partition, kept by the partition's task, typed, with a changelog behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from heapq import merge
from itertools import groupby, islice, takewhile
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, cast, get_args

import msgspec
from pydantic import BaseModel

from core.errors import MigrationError, TaskError, UsageError
from engine.batch import Slice, current_slice
from engine.codec import codec_of
from engine.schema import HEADER, Migration, Schema, said

if TYPE_CHECKING:
    from engine.store import PartitionStore

K = TypeVar("K", str, bytes)
V = TypeVar("V")

Change = Any
"""What a slice did to a shard, in the shard's own form."""
Items = list[tuple[bytes, bytes | None]]
Values = dict[bytes, bytes | None]
"""Key -> value; None deletes."""

RESERVED: Final = b"\xff"
"""First byte of keys that are ours: no UTF-8 text starts with it."""


class Shard(ABC):
    """One table's part in one partition, in levels, newest first:

    unfinished (slices at work) > dirty (finished prefix) > sending (the commit under way) > committed (not yet in
    RocksDB) > writing (on its way there) > RocksDB.
    """

    def __init__(self, name: str, store: PartitionStore) -> None:
        self.name = name
        self._store = store
        self.touched = False
        """Whether the next take() will have something, as far as is known by now."""
        self._committed: dict[bytes, bytes | None] = {}
        self._writing: dict[bytes, bytes | None] = {}

    @abstractmethod
    def settle(self, change: Change) -> None:
        """A slice's change joins the finished prefix."""

    @abstractmethod
    def rollback(self, dropped: Iterable[Slice[Any]], kept: Iterable[Slice[Any]]) -> None:
        """Slices are given up: the state is that of the finished prefix and of the unfinished slices that are kept."""

    @abstractmethod
    def take(self) -> Items:
        """What the finished prefix changed since the last take, for the next commit."""

    @abstractmethod
    def finished(self, key: bytes) -> bytes | None:
        """The value as of the finished prefix: what a reader from outside may see."""

    @abstractmethod
    def erase(self, s: Slice[Any], key: bytes) -> None:
        """Deletes on behalf of a slice, which must finish before another one works on the key. Also what isn't there:
        the changelog gets a tombstone in any case."""

    def held_by_work(self, key: bytes) -> bool:
        """Whether a slice that isn't finished has written it, beside those whose records have this key."""
        return False

    def absorb(self, items: Items) -> None:
        """The commit that took these has succeeded."""
        self._committed.update(items)

    @property
    def waiting(self) -> int:
        """Committed values that RocksDB doesn't have yet."""
        return len(self._committed)

    @property
    def in_memory(self) -> int:
        """Values that are held in memory, whatever for."""
        return len(self._committed) + len(self._writing)

    def hand_over(self) -> Values:
        """Committed values for RocksDB; readable here until written()."""
        self._writing, self._committed = self._committed, {}
        return self._writing

    def written(self) -> None:
        """RocksDB has what was handed over."""
        self._writing = {}

    @abstractmethod
    def tidy(self, unfinished: Iterable[Slice[Any]]) -> None:
        """After a checkpoint: gives back memory that neither a commit nor these slices need."""

    def stored(self, key: bytes) -> bytes | None:
        """The committed value."""
        for level in (self._committed, self._writing):
            if key in level:
                return level[key]
        return self._store.get(self.name, key)

    def walk(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Finished values from start on, in key order; for views, not for the hot path. Not across an await."""
        recent = sorted(key for key in self._recent() if key >= start)
        for key, _ in groupby(merge(recent, (key for key, _ in self._store.scan(self.name, start)))):
            if key.startswith(RESERVED):
                return
            if (value := self.finished(key)) is not None:
                yield key, value

    def items(self, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """The first of them."""
        return list(islice(self.walk(start), limit))

    @property
    def about(self) -> int:
        """How many keys it has, by RocksDB's estimate; for views."""
        return max(self._store.about(self.name), len(self._recent()))

    def keys_with(self, prefix: bytes) -> list[bytes]:
        """Keys of finished values that begin so."""
        return list(takewhile(lambda key: key.startswith(prefix), (key for key, _ in self.walk(prefix))))

    def _recent(self) -> set[bytes]:
        return {*self._committed, *self._writing}


class KeyValueShard(Shard):
    """Encoded values by encoded key."""

    def __init__(self, name: str, store: PartitionStore) -> None:
        super().__init__(name, store)
        self._pending: dict[int, Values] = {}
        """By identity: changes that aren't settled, in the order in which they were made."""
        self._unfinished: dict[bytes, Values] = {}
        """Key -> the newest change of it that isn't settled."""
        self._older: dict[bytes, list[Values]] = {}
        """Key -> changes before that one, where there are, in order. Slices of several topics settle in no order: what
        is settled later must not undo what was written later."""
        self._dirty: dict[bytes, bytes | None] = {}
        self._sending: dict[bytes, bytes | None] = {}

    def get(self, key: bytes) -> bytes | None:
        """The newest value, of unfinished work too: events of one key follow each other."""
        change = self._unfinished.get(key)
        return self.finished(key) if change is None else change[key]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """As get(), of many: half the price each."""
        wanted = set(keys)
        found: Values = {}
        for level in (self._writing, self._committed, self._sending, self._dirty):
            if not level.keys().isdisjoint(wanted):
                found.update((key, level[key]) for key in level.keys() & wanted)
        if not self._unfinished.keys().isdisjoint(wanted):
            found.update((key, self._unfinished[key][key]) for key in self._unfinished.keys() & wanted)
        far = [key for key in wanted if key not in found] if found else list(wanted)
        if far:
            found.update(zip(far, self._store.get_many(self.name, far), strict=True))
        return [found[key] for key in keys]

    def put(self, s: Slice[Any], key: bytes, value: bytes | None) -> None:
        """Writes on behalf of a slice; None deletes."""
        self.put_many(s, {key: value})

    def put_many(self, s: Slice[Any], values: Values) -> None:
        """As put(). The dict is the shard's from now on."""
        self._note(values)
        s.changed.append((self, values))

    def _note(self, values: Values) -> None:
        self._pending[id(values)] = values
        for key in self._unfinished.keys() & values.keys():
            self._older.setdefault(key, []).append(self._unfinished[key])
        self._unfinished.update(dict.fromkeys(values, values))

    def finished(self, key: bytes) -> bytes | None:
        for level in (self._dirty, self._sending):
            if key in level:
                return level[key]
        return self.stored(key)

    def erase(self, s: Slice[Any], key: bytes) -> None:
        self.put(s, key, None)

    @property
    def in_memory(self) -> int:
        return super().in_memory + len(self._unfinished) + len(self._dirty) + len(self._sending)

    def at_work(self, key: bytes) -> bool:
        """Whether a slice has written it that is not finished."""
        return key in self._unfinished

    held_by_work = at_work

    def forget(self, keys: Iterable[bytes]) -> bool:
        """Deletes finished values with the next commit, on behalf of no slice; not those that one has written. Returns
        whether there were any."""
        gone = dict.fromkeys(key for key in keys if key not in self._unfinished)
        self._dirty.update(gone)
        self.touched = self.touched or bool(gone)
        return bool(gone)

    def settle(self, change: Change) -> None:
        self.touched = True
        self._dirty.update(change)
        self._pending.pop(id(change), None)
        unfinished = self._unfinished
        for key in change:
            if key in self._older:
                for older in self._before(key, change):
                    older.pop(key, None)
            if unfinished.get(key) is change:
                del unfinished[key]

    def _before(self, key: bytes, change: Values) -> list[Values]:
        """The changes of a key before one: they, and it, are noted no more."""
        older = self._older[key]
        if self._unfinished.get(key) is change:
            return self._older.pop(key)
        place = next((i for i, one in enumerate(older) if one is change), -1)
        self._older[key] = older[place + 1 :]
        return older[: max(0, place)]

    def rollback(self, dropped: Iterable[Slice[Any]], kept: Iterable[Slice[Any]]) -> None:
        stay = {id(change) for s in kept for shard, change in s.changed if shard is self}
        pending = [change for identity, change in self._pending.items() if identity in stay]
        self._pending, self._unfinished, self._older = {}, {}, {}
        for change in pending:
            self._note(change)

    def take(self) -> Items:
        self.touched = False
        self._sending, self._dirty = self._dirty, {}
        return list(self._sending.items())

    def absorb(self, items: Items) -> None:
        super().absorb(items)
        self._sending = {}

    def tidy(self, unfinished: Iterable[Slice[Any]]) -> None:
        """Nothing to do: what RocksDB has is not kept here."""

    def _recent(self) -> set[bytes]:
        return super()._recent() | self._dirty.keys() | self._sending.keys()


class Table(Generic[K, V]):
    """A declaration: subclass it with key and value types, a name, and methods that say what it is for.

    Inside `for event in batch` it reads and writes like a dict, in the partition of the event.
    """

    name: ClassVar[str]
    retention: ClassVar[timedelta | None] = None
    """Event time after which a value may go; None keeps it."""
    of_sessions: ClassVar[bool] = True
    """Whether its keys are sessions, or begin with one: erasing a session then takes its values away."""
    separator: ClassVar[str | None] = None
    """What follows the session in keys that are made of more, `session/click`: something that no session has in it."""
    migrations: ClassVar[tuple[Migration, ...]] = ()
    """How values of older releases are read: the first function makes version 2 of version 1, and so on; what is
    written has the version behind the last. They get and give what JSON has: dicts, lists, texts, numbers
    (docs/state.md)."""

    short: ClassVar[bool] = False
    """Whether describe() leaves views nothing to do: no value is big, and times are told in ISO."""

    declared: ClassVar[dict[str, Table[Any, Any]]] = {}
    """Every table by name."""

    def __init__(self) -> None:
        other = Table.declared.setdefault(self.name, self)
        if type(other) is not type(self):
            raise UsageError(
                f"two tables are named {self.name!r}: {type(other).__qualname__}, {type(self).__qualname__}"
            )
        Table.declared[self.name] = self
        self._key, *value = get_args(next(b for b in type(self).__orig_bases__ if get_args(b)))  # type: ignore[attr-defined]
        self._key_bytes: Callable[[Any], bytes] = bytes if self._key is bytes else str.encode
        stored = self.stored_type(*value)
        codec = codec_of(stored)
        self._encode_value: Callable[[V], bytes] = codec.encode
        self._decode_value: Callable[[bytes], V] = codec.decode
        self._raw = stored is bytes
        self.schema = Schema(self.name, self.migrations)
        self._mark = self.schema.mark

    def stored_type(self, value: Any) -> Any:
        """What is stored for a value type of the declaration. Override where that is more than the value."""
        return value

    def shard(self, store: PartitionStore) -> Shard:
        """This table's part in a partition."""
        return KeyValueShard(self.name, store)

    def describe(self, shard: Shard, raw: bytes) -> Any:
        """A stored value for people: what JSON can hold, with readable names."""
        return msgspec.to_builtins(self.decode(raw), str_keys=True, enc_hook=_model)

    def copied(self, store: PartitionStore) -> Shard:
        """A copy's part, for a single look at it."""
        return self.shard(store)

    def keys_of(self, session: str, shard: Shard) -> list[bytes]:
        """The stored keys that belong to a session, for erasing it. Override where of_sessions and separator don't say
        it."""
        keys = [session.encode()] if self.of_sessions else []
        if self.of_sessions and self.separator is not None:
            keys += shard.keys_with(f"{session}{self.separator}".encode())
        return keys

    def expire(self, shard: Shard, watermark: int, busy: Iterable[Slice[Any]]) -> bool:
        """Called with every checkpoint: forgets what is past its retention. Returns whether anything went."""
        return False

    def migrated(self, migration: Migration, value: Any) -> Any:
        """What a migration makes of a stored value. Override where that is more than the value of the declaration."""
        return migration(value)

    def session(self, key: K) -> str | bytes:
        """The key of the records that a key's values belong to: it says in which partition they live. Override where
        that is neither the key nor what stands before `separator` (docs/backup.md: more partitions)."""
        if self.separator is None:
            return key
        return self.encode_key(key).decode().partition(self.separator)[0]

    def encode_key(self, key: K) -> bytes:
        """How a key is stored."""
        return self._key_bytes(key)

    def decode_key(self, raw: bytes) -> K:
        """What a stored key was."""
        return cast(K, raw.decode() if self._key is str else raw)

    def encode(self, value: V) -> bytes:
        """How a value is stored: flags and version, then its bytes."""
        return self._mark + self._encode_value(value)

    def decode(self, raw: bytes, key: bytes | None = None) -> V:
        """What a stored value was; key: whose, for an error's sake. Raises NewerStateError, MigrationError."""
        if raw[:HEADER] != self._mark:
            return self._older(raw, key)
        return self._decode_value(raw[HEADER:])

    def _older(self, raw: bytes, key: bytes | None) -> V:
        version = self.schema.version_of(raw, key)
        payload = raw[HEADER:]
        value: Any = payload if self._raw else msgspec.json.decode(payload)
        value = self.schema.upgraded(version, value, key, self.migrated)
        try:
            return self._decode_value(value if self._raw else msgspec.json.encode(value))
        except Exception as error:  # msgspec's and pydantic's
            raise MigrationError(self.name, version, self.schema.version, key, said(error)) from error

    def get(self, key: K, default: V | None = None) -> V | None:
        """The newest value in the partition of the event at work."""
        encoded = self.encode_key(key)
        raw = self._here().get(encoded)
        return default if raw is None else self.decode(raw, encoded)

    def __getitem__(self, key: K) -> V:
        encoded = self.encode_key(key)
        raw = self._here().get(encoded)
        if raw is None:
            raise KeyError(key)
        return self.decode(raw, encoded)

    def __contains__(self, key: K) -> bool:
        return self._here().get(self.encode_key(key)) is not None

    def __setitem__(self, key: K, value: V) -> None:
        self._here().put(current_slice(), self.encode_key(key), self.encode(value))

    def __delitem__(self, key: K) -> None:
        self._here().put(current_slice(), self.encode_key(key), None)

    def _here(self) -> KeyValueShard:
        s = current_slice()
        if s.stale:  # what it wrote would be read by the work that takes its place
            raise TaskError(f"partition {s.partition} has moved on; this work is done again")
        return cast(KeyValueShard, s.task.shard(self.name))


def _model(value: Any) -> Any:
    """What msgspec doesn't know: pydantic's models."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    raise NotImplementedError(f"{type(value).__qualname__} has no JSON form: override describe()")
