"""session id -> its running aggregates. Written by scoring, batch by batch; read by web views."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from core.clock import latest_ms
from core.errors import UsageError
from engine.batch import Slice
from engine.columns import ColumnShard, RowCodec, noted
from engine.late import iso
from engine.store import PartitionStore
from engine.table import Shard, Table
from models.features import SESSION, SessionFeature
from tables.aggregates import LAST_TS, Aggregates, Folded
from tables.keeping import NOTE, Keeping, SessionShard

Floats = NDArray[np.float64]

SKEW_MS: Final = 3_600_000
"""By how much the clocks of two workers may differ when one tells what it was asked for later than the other began."""
EXACT: Final = 1e15
"""Whole numbers below it are shown without a fraction."""
TIMES: Final = ("first_ts", "last_ts")
"""Columns that are shown among the features."""


class Sessions(Table[str, dict[str, float]]):
    """One row a session; which columns exist follows from what the models in the store ask for.

    Rows aren't put: fold() advances them, a batch at a time.
    """

    name = "sessions"
    short = True

    def __init__(self) -> None:
        super().__init__()
        self.configure((), ttl=None, hot=1)

    def configure(self, wanted: Iterable[SessionFeature], ttl: timedelta | None, hot: int) -> None:
        """wanted: the aggregates to keep, as the store's models ask for them now; ttl: event time of silence that ends
        a session; hot: rows in memory, per partition."""
        self._known_ms = int(time.time() * 1e3)
        self._ttl_ms = None if ttl is None else ttl / timedelta(milliseconds=1)
        self._hot = hot
        self._wanted: dict[SessionFeature, None] = {}
        self.want(wanted)

    def want(self, features: Iterable[SessionFeature]) -> None:
        """Keeps these aggregates too from now on, in every partition with its next batch: a session's start empty with
        its next event."""
        more = dict.fromkeys((*self._wanted, *features))
        if len(more) != len(self._wanted) or not hasattr(self, "aggregates"):
            self._wanted = more
            self.aggregates = Aggregates(more, self._ttl_ms)
            self._plain = RowCodec(self.aggregates.columns, self.aggregates.empty, self.schema)
            columns = self.aggregates.columns
            self._shown = _Names([*TIMES, *(name.removeprefix(SESSION) for name in self.aggregates.readable)])
            self._others = _Names(name for name in columns if name not in self._shown.names)
            self._times = [columns.index(name) for name in TIMES]
            self._rest = [columns.index(name) for name in self._others.names]

    @property
    def fields(self) -> tuple[str, ...]:
        """The raw fields that fold() wants, in order."""
        return self.aggregates.fields

    @property
    def features(self) -> tuple[str, ...]:
        """The session features that fold() gives, in order."""
        return self.aggregates.features

    def shard(self, store: PartitionStore) -> Shard:
        """Columnar, unlike other tables. What its last owner was asked to keep since we looked into the store is kept
        here too; what had no model there any more goes."""
        raw = noted(store, self.name, NOTE)
        if raw is not None:
            self.want(msgspec.json.decode(raw, type=Keeping).asked_since(self._known_ms - SKEW_MS))
        return SessionShard(self.name, store, self.schema, self._hot, self.aggregates)

    def copied(self, store: PartitionStore) -> Shard:
        """What another worker keeps is no wish of ours."""
        return SessionShard(self.name, store, self.schema, self._hot, self.aggregates)

    def fold(self, slices: Sequence[Slice[Any]], ts: Floats, values: Floats) -> list[Folded]:
        """Folds the events of slices, which follow each other, into their sessions.

        ts: (n,) ms since epoch; values: (n, len(fields)), NaN where an event has none. The rows join the next commit
        when their slice finishes.
        """
        folded: list[Folded] = []
        begin = 0
        for group in _apart(slices):
            end = begin + sum(len(s.records) for s in group)
            folded += self._fold(group, ts[begin:end], values[begin:end])
            begin = end
        return folded

    def _fold(self, slices: Sequence[Slice[Any]], ts: Floats, values: Floats) -> list[Folded]:
        """As fold(), of slices that share no session."""
        shards = [self._here_of(s) for s in slices]
        for shard in shards:
            shard.keep(self.aggregates)
        rows = [shard.rows(s, s.keys) for shard, s in zip(shards, slices, strict=True)]
        folded = self.aggregates.fold_apart([shard.own for shard in shards], rows, ts, values)
        end = 0
        for shard, s, each in zip(shards, slices, folded, strict=True):
            begin, end = end, end + len(each.features)
            shard.changed(s, each.touched, each.after)
            shard.folded(s)
            s.newest = _newest(ts[begin:end])
        return folded

    def describe(self, shard: Shard, raw: bytes) -> dict[str, Any]:
        """A stored row for people: features by their names in a manifest (less `session.`), and the columns that these
        are made of. Times in ISO; what has no value yet is left out."""
        rows = cast(SessionShard, shard)
        row = rows.row_of(raw)[: rows.codec.own]
        if rows.aggregates is not self.aggregates:
            row = self._plain.adopt(rows.aggregates.columns, row[None])[0]
        columns = row.tolist()
        shown = self._shown.shown([*[columns[place] for place in self._times], *self.aggregates.read(columns)])
        shown["accumulators"] = self._others.shown([columns[place] for place in self._rest])
        return shown

    def expire(self, shard: Shard, watermark: int, busy: Iterable[Slice[Any]]) -> bool:
        """Forgets a portion of the sessions that are silent for longer than the TTL. Returns whether any went."""
        if self._ttl_ms is None:
            return False
        columns = cast(ColumnShard, shard)
        at_work = {key for s in busy for key in s.keys}
        limit = watermark - self._ttl_ms
        gone = [key for key, row in columns.portion() if row[LAST_TS] < limit and key not in at_work]
        columns.expire(gone)
        return bool(gone)

    def get(self, key: str, default: Any = None) -> Any:
        """Refused: sessions are read and advanced by fold()."""
        raise UsageError("sessions are advanced by sessions.fold(), a batch at a time")

    __getitem__ = __setitem__ = __delitem__ = __contains__ = get

    def _here_of(self, s: Slice[Any]) -> SessionShard:
        return cast(SessionShard, s.task.shard(self.name))


def _newest(ts: Floats) -> int:
    """What the events say of the time. One that is ahead of the clock says nothing: it would end the sessions of all
    others."""
    newest, now = float(ts.max()), latest_ms()
    return int(newest if newest <= now else np.max(ts[ts <= now], initial=-1))


class _Names:
    """What numbers are called where people see them, and which of them are times."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._times = [name for name in self.names if name.partition(".")[0].endswith("_ts")]

    def shown(self, values: Sequence[float]) -> dict[str, Any]:
        """Those of the numbers, in the order of their names, that are any (no NaN, no infinity): whole ones
        as int, times in ISO."""
        shown: dict[str, Any] = {
            name: int(value) if value.is_integer() and -EXACT < value < EXACT else value
            for name, value in zip(self.names, values, strict=True)
            if value - value == 0.0
        }
        for name in self._times:
            if name in shown:
                shown[name] = iso(int(shown[name]))
        return shown


def _apart(slices: Iterable[Slice[Any]]) -> Iterator[list[Slice[Any]]]:
    """Groups of neighbours in which no partition comes twice."""
    group: list[Slice[Any]] = []
    seen: set[int] = set()
    for s in slices:
        if s.partition in seen:
            yield group
            group, seen = [], set()
        group.append(s)
        seen.add(s.partition)
    if group:
        yield group


sessions = Sessions()
