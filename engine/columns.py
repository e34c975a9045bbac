"""Columnar tables: numeric rows of many sessions in one matrix, so that a batch is folded by a few numpy calls."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from core.errors import UsageError
from engine.batch import Slice
from engine.schema import HEADER, Migration, Schema
from engine.store import PartitionStore
from engine.table import RESERVED, Change, Items, Shard

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

_LAYOUT: Final = RESERVED + b"layout:"
_NOTE: Final = RESERVED + b"note:"
_LIFE: Final = "\x1f"
_HEADER: Final = 8
"""Flags and version as every value has them, then the layout's fingerprint."""
PORTION: Final = 1000
"""Rows looked at in one go for expiry, about 5 ms."""


_FIRST: Final = Schema("rows")


class RowCodec:
    """Rows as bytes: flags, version and the layout's fingerprint, then each column as a little-endian float64.

    The layout says which columns there are, and differs from model to model; the version says what they mean.
    """

    def __init__(self, columns: tuple[str, ...], empty: Floats, schema: Schema = _FIRST, beside: int = 0) -> None:
        """beside: how many of the columns, the last ones, slices leave alone: they are filled beside the work."""
        self.columns = columns
        self.own = len(columns) - beside
        """So many columns are those of slices."""
        self.empty = empty
        self.schema = schema
        self.fingerprint = hashlib.blake2b("\0".join(columns).encode(), digest_size=_HEADER - HEADER).digest()
        self._begins = schema.mark + self.fingerprint
        self.nothing = self.encode_one(empty)
        """The row of a key that isn't there."""
        self._head = np.frombuffer(self._begins, np.uint8)

    def encode(self, rows: Floats) -> list[bytes]:
        """(n, columns) -> n values."""
        width = _HEADER + 8 * len(self.columns)
        out = np.empty((len(rows), width), np.uint8)
        out[:, :_HEADER] = self._head
        out[:, _HEADER:] = np.ascontiguousarray(rows, "<f8").view(np.uint8).reshape(len(rows), -1)
        raw = out.tobytes()
        return [raw[i : i + width] for i in range(0, len(raw), width)]

    def encode_one(self, row: Floats) -> bytes:
        """(columns,) -> its value."""
        return self._begins + row.astype("<f8", copy=False).tobytes()

    def decode(self, raw: bytes, layouts: dict[bytes, tuple[str, ...]], key: bytes | None = None) -> Floats:
        """A value of this layout and version, of another layout, or of an older version. Raises NewerStateError and
        MigrationError, which name the key."""
        values = np.frombuffer(raw, "<f8", offset=_HEADER)
        if raw[:_HEADER] == self._begins:
            return values
        version = self.schema.version_of(raw, key)
        columns = layouts[raw[HEADER:_HEADER]]
        if version < self.schema.version:
            named = self._upgraded(version, dict(zip(columns, values.tolist(), strict=True)), key)
            columns, values = tuple(named), np.array(list(named.values()))
        return cast(Floats, self.adopt(columns, values[None])[0])

    def _upgraded(self, version: int, row: dict[str, float], key: bytes | None) -> dict[str, float]:
        """A row of an older version. Migrations know columns by their names alone, so each life of them goes apart."""
        today = dict(map(_life, self.columns[: self.own]))
        beside = _life(self.columns[-1])[1] if self.own < len(self.columns) else None
        own: dict[str, tuple[str, float]] = {}
        filled: dict[str, float] = {}
        for column, value in row.items():
            name, life = _life(column)
            if life == beside:
                filled[name] = value
            elif name not in own or life == today.get(name):
                own[name] = life, value
        named = self.schema.upgraded(version, {name: value for name, (_, value) in own.items()}, key, _row)
        found = {alive(name, own[name][0] if name in own else today.get(name, "")): named[name] for name in named}
        if filled and beside is not None:
            found |= {alive(n, beside): value for n, value in self.schema.upgraded(version, filled, key, _row).items()}
        return found

    def adopt(self, columns: tuple[str, ...], rows: Floats) -> Floats:
        """(n, len(columns)) rows of another layout in this one: columns that it lacks start empty."""
        adopted = np.tile(self.empty, (len(rows), 1))
        known = {name: place for place, name in enumerate(columns)}
        both = [(known[name], place) for place, name in enumerate(self.columns) if name in known]
        adopted[:, [place for _, place in both]] = rows[:, [place for place, _ in both]]
        return adopted


def alive(name: str, life: str | int) -> str:
    """What rows call a column. One that went and came back has another life: what rows have of the former one must not
    be taken for it. The first life has no number."""
    return f"{name}{_LIFE}{life}" if life else name


def _life(column: str) -> tuple[str, str]:
    name, _, life = column.partition(_LIFE)
    return name, life


def _row(migration: Migration, columns: dict[str, float]) -> dict[str, float]:
    """What a migration makes of a row."""
    return {name: float(value) for name, value in migration(columns).items()}


def noted(store: PartitionStore, table: str, name: str) -> bytes | None:
    """What a partition has noted beside its rows, as of the last checkpoint."""
    return store.get(table, _NOTE + name.encode())


def layouts(store: PartitionStore, table: str) -> dict[bytes, tuple[str, ...]]:
    """Fingerprint -> columns, of every layout that a partition's rows have had."""
    found = {}
    for key, raw in store.scan(table, _LAYOUT):
        if not key.startswith(_LAYOUT):
            break
        found[key[len(_LAYOUT) :]] = tuple(json.loads(raw))
    return found


class ColumnShard(Shard):
    """One partition's rows. `live` holds unfinished work, `done` the finished prefix; cold rows wait in RocksDB."""

    def __init__(self, name: str, store: PartitionStore, codec: RowCodec, hot: int) -> None:
        super().__init__(name, store)
        self.codec = codec
        self.hot = hot
        """Rows kept in memory once all is quiet."""
        self._layouts = layouts(store, name)
        self._extra: dict[bytes, bytes | None] = {}
        self._deleted: set[bytes] = set()
        self._deleting: set[bytes] = set()
        self._clock = 0
        self._cursor = b""
        self._allocate(1024)
        self._note_layout()

    def _allocate(self, capacity: int) -> None:
        width = len(self.codec.columns)
        self.live = np.empty((capacity, width))
        self._done = np.empty((capacity, width))
        self._dirty = np.zeros(capacity, np.bool_)
        self._used = np.zeros(capacity, np.int64)
        self._index: dict[bytes, int] = {}
        self._keys: list[bytes | None] = [None] * capacity
        self._free = list(range(capacity - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._index)

    @property
    def in_memory(self) -> int:
        return super().in_memory + len(self)

    def rows(self, s: Slice[Any], keys: list[bytes]) -> Rows:
        """Row numbers of keys, loaded or new, good until the slice finishes. The slice may change them in `own`."""
        rows = self._rows_of(keys)
        s.changed.append((self, (rows, None, self.codec)))
        return rows

    def beside(self, keys: list[bytes]) -> Rows:
        """Row numbers of keys, good until the event loop goes on, for who fills the columns that slices leave alone."""
        return self._rows_of(keys)

    def filled(self, touched: Rows) -> None:
        """Columns that slices leave alone were changed in `live`: they join the next commit, finished as they are."""
        own = self.codec.own
        self._done[touched, own:] = self.live[touched, own:]
        self._dirty[touched] = True
        self.touched = True

    def _rows_of(self, keys: list[bytes]) -> Rows:
        index = self._index
        try:
            rows = np.fromiter(map(index.__getitem__, keys), np.intp, len(keys))
        except KeyError:
            self._load([key for key in dict.fromkeys(keys) if key not in index])
            rows = np.fromiter(map(index.__getitem__, keys), np.intp, len(keys))
        self._clock += 1
        self._used[rows] = self._clock
        return rows

    @property
    def own(self) -> Floats:
        """The columns of `live` that slices may change, (cap, codec.own)."""
        return self.live[:, : self.codec.own]

    def changed(self, s: Slice[Any], touched: Rows, after: Floats) -> None:
        """What a slice made of its rows: (m,) distinct row numbers and a copy of their own columns."""
        s.changed.append((self, (touched, after, self.codec)))

    def erase(self, s: Slice[Any], key: bytes) -> None:
        s.changed.append((self, (None, key, None)))

    def settle(self, change: Change) -> None:
        touched, after, codec = change
        if touched is None:
            self.expire([after])
            return
        if after is None:
            return
        self.touched = True
        self._put(self._done, touched, after, codec)
        self._dirty[touched] = True
        if self._deleted:
            self._deleted.difference_update(self._keys_of(touched))

    def rollback(self, dropped: Iterable[Slice[Any]], kept: Iterable[Slice[Any]]) -> None:
        for rows, _, _ in self._changes(dropped):
            self.live[rows] = self._done[rows]
        for rows, after, codec in self._changes(kept):
            if after is not None:
                self._put(self.live, rows, after, codec)

    def _put(self, matrix: Floats, rows: Rows, after: Floats, codec: RowCodec) -> None:
        """codec: of the slice. Where there are other columns since, it has changed none of the new ones."""
        if codec is not self.codec:
            after = self.codec.adopt(codec.columns[: codec.own], after)[:, : self.codec.own]
        if self.codec.own == matrix.shape[1]:
            matrix[rows] = after
        else:
            matrix[rows, : self.codec.own] = after

    def _changes(self, slices: Iterable[Slice[Any]]) -> Iterator[tuple[Rows, Floats | None, RowCodec]]:
        return (change for s in slices for shard, change in s.changed if shard is self and change[0] is not None)

    def take(self) -> Items:
        self.touched = False
        rows = np.flatnonzero(self._dirty)
        items: Items = list(self._extra.items())
        self._extra = {}
        self._deleting, self._deleted = self._deleted, set()
        items += [(key, None) for key in self._deleting]
        if len(rows):
            self._dirty[rows] = False
            items += zip(self._keys_of(rows), self.codec.encode(self._done[rows]), strict=True)
        return items

    def absorb(self, items: Items) -> None:
        super().absorb(items)
        self._deleting = set()

    def finished(self, key: bytes) -> bytes | None:
        row = self._index.get(key)
        if row is None:
            return None if self._gone(key) else self.stored(key)
        raw = self.codec.encode_one(self._done[row])
        return raw if raw != self.codec.nothing or self._dirty[row] else None

    def row_of(self, raw: bytes, key: bytes | None = None) -> Floats:
        """A stored value as a row of today's columns."""
        return self.codec.decode(raw, self._layouts, key)

    def portion(self) -> list[tuple[bytes, Floats]]:
        """The finished rows of the next so many keys, in key order; after the last it begins anew."""
        keys = [key for key, _ in islice(self._store.scan(self.name, self._cursor), PORTION)]
        self._cursor = keys[-1] + b"\0" if len(keys) == PORTION else b""
        found = ((key, self.finished(key)) for key in keys if not key.startswith(RESERVED))
        return [(key, self.row_of(raw, key)) for key, raw in found if raw is not None]

    def expire(self, keys: Iterable[bytes]) -> None:
        """Forgets sessions: a tombstone each, with the next commit. Not while a slice works on them."""
        for key in keys:
            self.touched = True
            self._deleted.add(key)
            self._drop(key)

    def tidy(self, unfinished: Iterable[Slice[Any]]) -> None:
        """Back to the cap: the longest unused rows go, unless a commit or a slice still needs them."""
        surplus = len(self._index) - self.hot
        if surplus <= 0:
            return
        keep = self._dirty.copy()
        for rows, _, _ in self._changes(unfinished):
            keep[rows] = True
        held = np.fromiter(self._index.values(), np.intp, len(self._index))
        idle = held[~keep[held]]
        surplus = min(surplus + self.hot // 10, len(idle))
        for row in idle[np.argpartition(self._used[idle], surplus - 1)[:surplus]].tolist() if surplus else ():
            key = self._keys[row]
            assert key is not None
            self._drop(key)

    def relayout(self, codec: RowCodec) -> None:
        """Other columns from now on. What slices at work have changed by now has none of the new ones."""
        old = self.codec.columns
        self.live, self._done = codec.adopt(old, self.live), codec.adopt(old, self._done)
        self.codec = codec
        self._note_layout()

    def note(self, name: str, value: bytes) -> None:
        """Keeps something beside the rows: it joins the next commit."""
        self._extra[_NOTE + name.encode()] = value

    def _keys_of(self, rows: Rows) -> list[bytes]:
        keys = cast(list[bytes], self._keys)
        return [keys[row] for row in rows.tolist()]

    def _gone(self, key: bytes) -> bool:
        return key in self._deleted or key in self._deleting

    def _drop(self, key: bytes) -> None:
        row = self._index.pop(key, None)
        if row is not None:
            self._keys[row] = None
            self._dirty[row] = False
            self._free.append(row)

    def _load(self, missing: list[bytes]) -> None:
        if len(self._free) < len(missing):
            self._grow(len(missing))
        rows = [self._free.pop() for _ in missing]
        values = np.tile(self.codec.empty, (len(missing), 1))
        recent = [
            None if self._gone(k) else self._committed[k] if k in self._committed else self._writing.get(k, b"")
            for k in missing
        ]
        cold = [i for i, raw in enumerate(recent) if raw == b""]
        stored = self._store.get_many(self.name, [missing[i] for i in cold]) if cold else []
        for i, raw in zip(cold, stored, strict=True):
            recent[i] = raw
        for i, raw in enumerate(recent):
            if raw is not None:
                values[i] = self.codec.decode(raw, self._layouts, missing[i])
        self.live[rows] = values
        self._done[rows] = values
        for key, row in zip(missing, rows, strict=True):
            self._index[key] = row
            self._keys[row] = key

    def _grow(self, needed: int) -> None:
        old = len(self._keys)
        new = max(old * 3 // 2, old + needed)
        for name in ("live", "_done", "_dirty", "_used"):
            array = getattr(self, name)
            bigger = np.zeros((new, *array.shape[1:]), array.dtype)
            bigger[:old] = array
            setattr(self, name, bigger)
        self._keys += [None] * (new - old)
        self._free[:0] = range(new - 1, old - 1, -1)

    def _note_layout(self) -> None:
        codec = self.codec
        known = self._layouts.get(codec.fingerprint)
        if known is not None and known != codec.columns:
            raise UsageError(f"two layouts of {self.name!r} have one fingerprint: name one of their columns otherwise")
        if known is None:
            self._layouts[codec.fingerprint] = codec.columns
            self._extra[_LAYOUT + codec.fingerprint] = json.dumps(codec.columns).encode()

    def _recent(self) -> set[bytes]:
        dirty = {key for row in np.flatnonzero(self._dirty).tolist() if (key := self._keys[row]) is not None}
        return super()._recent() | dirty | self._deleted | self._deleting
