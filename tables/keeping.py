"""What one partition's sessions keep, and since when: an aggregate that a model asks for later begins with the next
observation there, or with an earlier one where it is filled from the log. A row says which of its columns are of which
beginning."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from engine.batch import Slice
from engine.columns import ColumnShard, Floats, RowCodec, alive, layouts, noted
from engine.schema import Schema
from engine.store import PartitionStore
from engine.table import Change
from models.features import SessionFeature, parse
from tables.aggregates import Aggregates

log = logging.getLogger(__name__)

NOTE: Final = "keeping"
UNKNOWN: Final = 0
"""Since when rows of a release that didn't note it have a column."""
OLDEST: Final = "count"
"""A column that every row has had since there are rows."""


class Kept(msgspec.Struct, omit_defaults=True):
    """One column in one partition."""

    generation: int = 0
    """Which of its lives this is: one that nobody asked for any more, and somebody does again, begins anew."""
    asked: int = 0
    """ms since epoch, by the worker's clock: when it was asked for. 0: with the table."""
    since: int | None = None
    """ms since epoch: when the first observation that is in it was written to Kafka. None: none has come yet."""
    source: str | None = None
    """That observation: TOPIC/PARTITION/OFFSET. Every one from there on is in it."""

    @property
    def offset(self) -> int | None:
        """Of that observation; -1 where nobody knows, None while there is none."""
        return None if self.source is None else int(self.source.rpartition("/")[2] or -1)


class Fill(msgspec.Struct, omit_defaults=True):
    """Features that are being filled from the log, in columns beside those that count."""

    request: str
    """Who asked for it: MODEL/REVISION."""
    features: list[str]
    generation: int
    source: str
    """The first observation that is in them: TOPIC/PARTITION/OFFSET."""
    since: int
    """When that one was written, ms since epoch."""
    position: int
    """The next offset: every observation before it is in them."""

    @property
    def first(self) -> int:
        """Offset of the first observation."""
        return int(self.source.rpartition("/")[2])


class Keeping(msgspec.Struct, omit_defaults=True):
    """What a partition notes beside its rows."""

    features: list[str] = []
    """Session features, as manifests name them."""
    columns: dict[str, Kept] = {}
    """Those of the rows, and those that rest until the next slice."""
    generations: int = 0
    """How many there have been."""
    fill: Fill | None = None
    filled: dict[str, str] = {}
    """Model -> the newest request of it to fill that is done here."""

    def asked_since(self, moment: int) -> list[SessionFeature]:
        """The features that were asked for later than that, ms since epoch."""
        wanted = _features(self.features)
        read_from = Aggregates(wanted).read_from
        return [one for one in wanted if self.columns[read_from[one.name][0]].asked > moment]


class Folded(NamedTuple):
    """What a slice was folded into, and where its observations begin."""

    columns: tuple[str, ...]
    source: str
    since: int


class SessionShard(ColumnShard):
    """One partition's sessions. Its columns are the worker's, under names that tell one beginning from another."""

    def __init__(self, name: str, store: PartitionStore, schema: Schema, hot: int, aggregates: Aggregates) -> None:
        self._schema = schema
        raw = noted(store, name, NOTE)
        self.keeping = _found(store, name) if raw is None else msgspec.json.decode(raw, type=Keeping)
        self.aggregates = aggregates
        self._fit(aggregates)
        super().__init__(name, store, self._codec(), hot)
        self._note()

    def keep(self, aggregates: Aggregates) -> None:
        """Keeps these from now on; what is new among them begins with the first slice that is folded and finished."""
        if aggregates is not self.aggregates:
            self.aggregates = aggregates
            self._fit(aggregates)
            self._relayout()

    def folded(self, s: Slice[Any]) -> None:
        """A slice was folded into the columns of today. Where it is the first to finish, they begin with it. What it
        wasn't folded into is over: until then it goes on where somebody asks for it after all, once the store can be
        read again."""
        if len(self.keeping.columns) > len(self.aggregates.columns):
            self.keeping.columns = {name: self.keeping.columns[name] for name in self.aggregates.columns}
            self._note()
        if self._begins:
            folded = Folded(self.aggregates.columns, f"{s.topic}/{s.partition}/{s.first}", s.oldest)
            s.changed.append((self, (None, folded, None)))

    def settle(self, change: Change) -> None:
        if isinstance(change[1], Folded):
            self._begin(change[1])
        else:
            super().settle(change)

    def late(self, features: Iterable[str]) -> dict[str, Kept]:
        """Those among session features that began later than the table itself: sessions that had been there before
        have none of what happened until then."""
        if self.keeping.columns[OLDEST].source is None:
            return {}
        read_from, late, missing = self.aggregates.read_from, self._late, Kept()
        found = {name: late.get(read_from[name][0]) if name in read_from else missing for name in features}
        return {name: kept for name, kept in found.items() if kept is not None}

    def _begin(self, folded: Folded) -> None:
        columns = self.keeping.columns
        new = [name for name in folded.columns if name in columns and columns[name].since is None]
        for name in new:
            columns[name].since, columns[name].source = folded.since, folded.source
        if any(columns[name].generation for name in new):
            log.info("%s: from %s on sessions keep %s too", self.name, folded.source, ", ".join(new))
        if new:
            self._note()

    def _fit(self, aggregates: Aggregates) -> None:
        """Its columns become those of these aggregates; the ones that it has go on, or rest."""
        keeping, now = self.keeping, int(time.time() * 1e3)
        new = [name for name in aggregates.columns if name not in keeping.columns]
        first = not keeping.columns
        if new and not first:
            keeping.generations += 1
        begun = Kept() if first else Kept(keeping.generations, now)
        fresh = {name: msgspec.structs.replace(begun) for name in new}
        keeping.columns |= fresh
        keeping.features = list(aggregates.features)
        if keeping.fill is not None and not aggregates.read_from.keys() >= set(keeping.fill.features):
            keeping.fill = None

    # -- filling from the log -----------------------------------------------------------------------------------------

    def begin_fill(self, request: str, features: Iterable[str], source: str, since: int) -> None:
        """From now on these features are filled, in columns of their own, beginning with that observation. What was
        being filled before is given up."""
        keeping = self.keeping
        keeping.generations += 1
        first = int(source.rpartition("/")[2])
        keeping.fill = Fill(request, list(features), keeping.generations, source, since, first)
        self._relayout()

    def fill(self, keys: list[bytes], ts: Floats, values: Floats, position: int) -> None:
        """Folds observations into the columns that are being filled, in the order of the log.

        ts: (n,) ms since epoch; values: (n, len(filling.fields)), NaN where an observation has none; position: the
        next offset. Sessions that have no row are left out: they are over, or erased.
        """
        fill, filling, own = self.keeping.fill, self.filling, self.codec.own
        assert fill is not None
        assert filling is not None
        there = {key for key in set(keys) if self.finished(key) is not None}
        places = [i for i, key in enumerate(keys) if key in there]
        if places:
            rows = self.beside([keys[i] for i in places])
            folded = filling.fold(self.live[:, own:], rows, ts[places], values[places])
            self.filled(folded.touched)
        fill.position = position
        self._note()

    def end_fill(self, model: str) -> None:
        """What was filled takes the place of what counted so far. Not while a slice works on rows.

        Its position is where the finished prefix of the observations ends: from there on slices go on with it.
        """
        keeping, fill, filling = self.keeping, self.keeping.fill, self.filling
        assert fill is not None
        assert filling is not None
        kept = Kept(fill.generation, int(time.time() * 1e3), fill.since, fill.source)
        for feature in fill.features:
            for name in filling.read_from[feature]:
                keeping.columns[name] = msgspec.structs.replace(kept)
        keeping.fill, keeping.filled[model] = None, fill.request
        self._relayout()
        log.info("%s: from %s on sessions keep %s", self.name, fill.source, ", ".join(fill.features))

    def give_up_fill(self) -> None:
        """Nobody wants any more what is being filled."""
        self.keeping.fill = None
        self._relayout()

    def nothing_to_fill(self, model: str, request: str) -> None:
        """A request is done: all that it asks for is here."""
        self.keeping.filled[model] = request
        self._note()

    # -----------------------------------------------------------------------------------------------------------------

    def _relayout(self) -> None:
        self.relayout(self._codec())
        self._note()

    def _codec(self) -> RowCodec:
        fill = self.keeping.fill
        self.filling = None if fill is None else Aggregates(_features(fill.features), self.aggregates.ttl_ms)
        columns = [alive(name, self.keeping.columns[name].generation) for name in self.aggregates.columns]
        if fill is None or self.filling is None:
            return RowCodec(tuple(columns), self.aggregates.empty, self._schema)
        beside = [alive(name, fill.generation) for name in self.filling.columns]
        empty = np.concatenate([self.aggregates.empty, self.filling.empty])
        return RowCodec((*columns, *beside), empty, self._schema, len(beside))

    def _note(self) -> None:
        columns = {name: self.keeping.columns[name] for name in self.aggregates.columns}
        self._begins = any(kept.since is None for kept in columns.values())
        oldest = columns[OLDEST].offset
        self._late = {
            name: kept
            for name, kept in columns.items()
            if kept.offset is None or (oldest is not None and kept.offset > oldest)
        }
        self.note(NOTE, msgspec.json.encode(self.keeping))


def _features(names: Iterable[str]) -> list[SessionFeature]:
    return [feature for name in names if isinstance(feature := parse(name), SessionFeature)]


def _found(store: PartitionStore, table: str) -> Keeping:
    """What rows of a release that noted nothing have: since when, nobody knows."""
    columns = {name for names in layouts(store, table).values() for name in names}
    return Keeping(columns={name: Kept(since=UNKNOWN, source="") for name in sorted(columns)})
