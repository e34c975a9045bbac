"""What one partition's sessions keep, and since when: an aggregate that a model asks for later begins with the next
observation there, and a row says which of its columns are of which beginning."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from engine.batch import Slice
from engine.columns import ColumnShard, RowCodec, layouts, noted
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

    def stored(self, column: str) -> str:
        """What the column is called in rows: those of another generation must not be taken for it."""
        return f"{column}\x1f{self.generation}" if self.generation else column


class Keeping(msgspec.Struct, omit_defaults=True):
    """What a partition notes beside its rows."""

    features: list[str] = []
    """Session features, as manifests name them."""
    columns: dict[str, Kept] = {}
    generations: int = 0
    """How many there have been."""

    def asked_since(self, moment: int) -> list[SessionFeature]:
        """The features that were asked for later than that, ms since epoch."""
        wanted = [feature for name in self.features if isinstance(feature := parse(name), SessionFeature)]
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
            self.relayout(self._codec())
            self._note()

    def folded(self, s: Slice[Any]) -> None:
        """A slice was folded into the columns of today. Where it is the first to finish, they begin with it."""
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
        oldest = self.keeping.columns.get(OLDEST, Kept())
        if oldest.since is None:
            return {}
        found = {}
        for feature in features:
            columns = self.aggregates.read_from.get(feature)
            kept = self.keeping.columns[columns[0]] if columns is not None else Kept()
            if kept.source != oldest.source:
                found[feature] = kept
        return found

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
        """Its columns become those of these aggregates; the ones that it has go on."""
        keeping, now = self.keeping, int(time.time() * 1e3)
        new = [name for name in aggregates.columns if name not in keeping.columns]
        first = not keeping.columns
        if new and not first:
            keeping.generations += 1
        begun = Kept() if first else Kept(keeping.generations, now)
        fresh = {name: msgspec.structs.replace(begun) for name in new}
        keeping.columns = {name: keeping.columns.get(name) or fresh[name] for name in aggregates.columns}
        keeping.features = list(aggregates.features)

    def _codec(self) -> RowCodec:
        columns = tuple(kept.stored(name) for name, kept in self.keeping.columns.items())
        return RowCodec(columns, self.aggregates.empty, self._schema)

    def _note(self) -> None:
        self._begins = any(kept.since is None for kept in self.keeping.columns.values())
        self.note(NOTE, msgspec.json.encode(self.keeping))


def _found(store: PartitionStore, table: str) -> Keeping:
    """What rows of a release that noted nothing have: since when, nobody knows."""
    columns = {name for names in layouts(store, table).values() for name in names}
    return Keeping(columns={name: Kept(since=UNKNOWN, source="") for name in sorted(columns)})
