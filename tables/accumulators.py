"""The arithmetic of session aggregates, a family at a time: its columns, its fold, the features read from it.

Every family keeps what its own features need and nothing else does, so that a feature's columns don't depend on
what else is asked for: rows outlive a swap to a model that asks for more. All arrays have a row per column or
field and a column per event, each event of another session, so that every operation is one pass over contiguous
memory. NaN stands for "no value yet" in columns and for "not sent" in values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from models.features import Kind, SessionFeature

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Index = slice | NDArray[np.intp]
Key = tuple[str | None, int | None]
"""What an accumulator is kept for: a field, and a half-life in seconds where the family has one."""


@dataclass(frozen=True, slots=True)
class Events:
    """n events of n different sessions."""

    ts: Floats
    """(n,) ms since epoch."""
    newest: Floats
    """(n,) time of the session's newest earlier event; NaN for its first."""
    late: Bools
    """(n,) older than the newest: what depends on order leaves the event out."""
    values: Floats
    """(k, n) a row per field; NaN: not sent."""
    missing: Bools | None
    """(k, n) where values are NaN; None where none is, which saves a good part of the work."""


class Family:
    """Columns that are folded together, and the features that are read from them."""

    kinds: ClassVar[frozenset[Kind]]
    parts: ClassVar[Mapping[str, float]]
    """Name of each part of an accumulator -> its value in an empty row. A part is a block of columns, one a key."""
    tells: ClassVar[tuple[Kind, ...]] = ()
    """What known() says."""

    def __init__(self, features: Sequence[SessionFeature], fields: Sequence[str]) -> None:
        """features: all that were asked for, in the order of the output. fields: the order of the values' rows."""
        asked = [(place, feature) for place, feature in enumerate(features) if feature.kind in self.kinds]
        self.keys: Final = self.keys_of([feature for _, feature in asked])
        self.columns: Final = tuple(_column(part, key) for part in self.parts for key in self.keys)
        self.empty: Final = tuple(empty for empty in self.parts.values() for _ in self.keys)
        self._taken: Final = _index([fields.index(field) for field, _ in self.keys if field is not None])
        self._read: Final[dict[Kind, tuple[Index, Index]]] = {}
        for kind in {feature.kind for _, feature in asked}:
            places = {place: self.keys.index(_key(f)) for place, f in asked if f.kind is kind}
            self._read[kind] = _index(list(places.values())), _index(list(places))

    def keys_of(self, asked: Sequence[SessionFeature]) -> tuple[Key, ...]:
        """What accumulators are kept for: here each key that a feature names, once."""
        return tuple(dict.fromkeys(map(_key, asked)))

    def columns_of(self, feature: SessionFeature) -> tuple[str, ...]:
        """The columns that one of its features is read from."""
        return tuple(_column(part, _key(feature)) for part in self.parts)

    def fold(self, columns: Floats, events: Events, out: Floats) -> None:
        """Folds the events into their sessions' columns, in place, and writes the features that they see.

        columns: (len(self.columns), n). out: (features asked for, n), of which only this family's rows are written.
        """
        raise NotImplementedError

    def known(self, parts: Sequence[float]) -> tuple[float, ...]:
        """What a finished accumulator says by itself, without an event at hand: the kinds in `tells`; NaN: no value
        yet. Plain floats, since this is asked of one session at a time."""
        return ()

    def named(self) -> list[str]:
        """The features that known() says of each key, one key after the other."""
        return [SessionFeature(kind, *key).name for key in self.keys for kind in self.tells]

    def split(self, columns: Floats) -> list[Floats]:
        """A view of each part's block."""
        width = len(self.keys)
        return [columns[at : at + width] for at in range(0, len(columns), width)]

    def values(self, events: Events) -> tuple[Floats, Bools | None]:
        """The values of this family's keys, (len(self.keys), n), and where they are missing."""
        return events.values[self._taken], None if events.missing is None else events.missing[self._taken]

    def write(self, kind: Kind, block: Floats, out: Floats) -> None:
        """Puts a block with a row per key where the features of that kind belong."""
        if kind in self._read:
            key, place = self._read[kind]
            out[place] = block[key]

    def asks(self, kind: Kind) -> bool:
        """Whether any feature of that kind was asked for."""
        return kind in self._read


class Clock(Family):
    """Of the events themselves: how many, since when, until when."""

    kinds = frozenset({Kind.COUNT, Kind.SECONDS_SINCE_FIRST, Kind.SECONDS_SINCE_LAST, Kind.MEAN_GAP})
    parts = MappingProxyType({"count": 0.0, "first_ts": np.nan, "last_ts": np.nan})
    tells = (Kind.COUNT, Kind.SECONDS_SINCE_FIRST, Kind.MEAN_GAP)

    def keys_of(self, asked: Sequence[SessionFeature]) -> tuple[Key, ...]:
        """One, whatever is asked for: the order of events and expiry stand on it."""
        return ((None, None),)

    def fold(self, columns: Floats, events: Events, out: Floats) -> None:
        count, first, last = self.split(columns)
        count += 1
        np.fmin(first, events.ts, out=first)
        np.fmax(last, events.ts, out=last)
        self.write(Kind.COUNT, count, out)
        if self.asks(Kind.SECONDS_SINCE_FIRST):
            self.write(Kind.SECONDS_SINCE_FIRST, (events.ts - first) / 1e3, out)
        if self.asks(Kind.SECONDS_SINCE_LAST):
            self.write(Kind.SECONDS_SINCE_LAST, np.maximum(events.ts - events.newest, 0.0)[None] / 1e3, out)
        if self.asks(Kind.MEAN_GAP):
            self.write(Kind.MEAN_GAP, (last - first) / (count - 1) / 1e3, out)  # 0/0, so NaN, for the first

    def known(self, parts: Sequence[float]) -> tuple[float, ...]:
        count, first, last = parts
        lasted = (last - first) / 1e3
        return count, lasted, lasted / (count - 1) if count > 1 else math.nan


class Sums(Family):
    """Sum and mean. Exact for integers; else the relative error is below n * 1.2e-16 where signs agree."""

    kinds = frozenset({Kind.SUM, Kind.MEAN})
    parts = MappingProxyType({"n": 0.0, "sum": 0.0})
    tells = (Kind.SUM, Kind.MEAN)

    def fold(self, columns: Floats, events: Events, out: Floats) -> None:
        n, total = self.split(columns)
        x, missing = self.values(events)
        if missing is None:
            n += 1
            total += x
        else:
            n += ~missing
            total += np.where(missing, 0.0, x)
        if self.asks(Kind.SUM):
            self.write(Kind.SUM, total if missing is None else np.where(n > 0, total, np.nan), out)
        if self.asks(Kind.MEAN):
            self.write(Kind.MEAN, total / n, out)  # 0/0, so NaN, without a value

    def known(self, parts: Sequence[float]) -> tuple[float, ...]:
        n, total = parts
        return (total, total / n) if n > 0 else (math.nan, math.nan)


class Moments(Family):
    """Sample variance (ddof=1) and z-score, by Welford's recurrence on the distance to the first value.

    That distance keeps what a large offset would round away: from 1e9 on, doubles lie 1e-7 apart, and the plain
    recurrence would carry their rounding into the deviations. With the first value as origin, the problem's
    condition is below sqrt(1 + n) whatever the data, since the first value is one of those that vary.
    Source: Welford 1962; shifting, Chan, Golub and LeVeque 1983.
    """

    kinds = frozenset({Kind.VARIANCE, Kind.ZSCORE})
    parts = MappingProxyType({"seen": 0.0, "origin": np.nan, "drift": 0.0, "m2": 0.0})
    tells = (Kind.VARIANCE,)
    # seen: values. origin: the first one. drift: the mean's distance to it. m2: sum of squared deviations.

    def fold(self, columns: Floats, events: Events, out: Floats) -> None:
        seen, origin, drift, m2 = self.split(columns)
        x, missing = self.values(events)
        np.copyto(origin, x, where=seen == 0)  # again and again, until the first value is there
        deviation = x - origin - drift
        if missing is not None:
            np.copyto(deviation, 0.0, where=missing)
        if self.asks(Kind.ZSCORE):
            spread = np.sqrt(m2 / np.maximum(seen - 1, 1))
            score = np.where(spread > 0, deviation / spread, 0.0)
            self.write(Kind.ZSCORE, score if missing is None else np.where(missing, np.nan, score), out)
        seen += 1 if missing is None else ~missing
        drift += deviation / np.maximum(seen, 1)
        m2 += deviation * (deviation - deviation / np.maximum(seen, 1))
        if self.asks(Kind.VARIANCE):
            variance = m2 / np.maximum(seen - 1, 1)
            self.write(Kind.VARIANCE, variance if missing is None else np.where(seen > 0, variance, np.nan), out)

    def known(self, parts: Sequence[float]) -> tuple[float, ...]:
        seen, _, _, m2 = parts
        return (m2 / max(seen - 1, 1) if seen > 0 else math.nan,)


class Extremes(Family):
    """Smallest and largest value. fmin and fmax pass over NaN on either side."""

    kinds = frozenset({Kind.MIN, Kind.MAX})
    parts = MappingProxyType({"min": np.nan, "max": np.nan})
    tells = (Kind.MIN, Kind.MAX)

    def fold(self, columns: Floats, events: Events, out: Floats) -> None:
        low, high = self.split(columns)
        x, _ = self.values(events)
        np.fmin(low, x, out=low)
        np.fmax(high, x, out=high)
        self.write(Kind.MIN, low, out)
        self.write(Kind.MAX, high, out)

    def known(self, parts: Sequence[float]) -> tuple[float, ...]:
        return tuple(parts)


class Latest(Family):
    """The newest value in event time; of those with one time, the last to come."""

    kinds = frozenset({Kind.LAST})
    parts = MappingProxyType({"last": np.nan})
    tells = (Kind.LAST,)

    def fold(self, columns: Floats, events: Events, out: Floats) -> None:
        x, missing = self.values(events)
        known = ~events.late if missing is None else ~(missing | events.late)
        np.copyto(columns, x, where=known)
        self.write(Kind.LAST, columns, out)

    def known(self, parts: Sequence[float]) -> tuple[float, ...]:
        return tuple(parts)


class Decays(Family):
    """Exponentially decayed means: a value weighs 2^(-age / half-life), so the order of arrival doesn't matter.

    Ages count from the field's own newest value (`decay_ts`): a mean doesn't depend on where its ages begin, and
    so no weight ever underflows while a field is silent. The mean itself is kept, not a weighted sum, which keeps
    a mean of equal values equal. It is taken from the heavier of the mean and the value, moved towards the lighter
    one, so that a value's rounding fades as fast as its weight: the error stays within some 1e-16 of the weighted
    mean of |value| for each value that still counts.
    """

    kinds = frozenset({Kind.DECAYED_MEAN})
    parts = MappingProxyType({"decay_ts": np.nan, "decay_weight": 0.0, "decay_mean": 0.0})
    tells = (Kind.DECAYED_MEAN,)

    def __init__(self, features: Sequence[SessionFeature], fields: Sequence[str]) -> None:
        super().__init__(features, fields)
        half_lives = [half_life for _, half_life in self.keys if half_life is not None]
        self._per_ms: Final = 1e-3 / np.array(half_lives, np.float64)[:, None]
        """(keys, 1) half-lives in a millisecond."""

    def fold(self, columns: Floats, events: Events, out: Floats) -> None:
        newest, weight, mean = self.split(columns)
        x, missing = self.values(events)
        ahead = np.where(weight > 0, events.ts - newest, 0.0)
        fade = np.exp2(-np.abs(ahead) * self._per_ms)
        inserted = ahead < 0
        new = np.where(inserted, fade, 1.0)
        old = np.where(inserted, weight, weight * fade)
        total = old + new
        lighter = new < old
        heavy = np.where(lighter, mean, x)
        moved = heavy + (np.where(lighter, x, mean) - heavy) * (np.minimum(old, new) / total)
        known: Bools | bool = True if missing is None else ~missing
        np.copyto(mean, moved, where=known)
        np.copyto(weight, total, where=known)
        np.copyto(newest, np.fmax(newest, events.ts), where=known)
        self.write(Kind.DECAYED_MEAN, mean if missing is None else np.where(weight > 0, mean, np.nan), out)

    def known(self, parts: Sequence[float]) -> tuple[float, ...]:
        _, weight, mean = parts
        return (mean if weight > 0 else math.nan,)


FAMILIES: Final[tuple[type[Family], ...]] = (Clock, Sums, Moments, Extremes, Latest, Decays)
"""In the order of their columns; Clock first, so that its three columns stand at the same place in every layout."""


def _key(feature: SessionFeature) -> Key:
    return feature.field, feature.half_life_s


def _column(part: str, key: Key) -> str:
    field, half_life = key
    name = part if field is None else f"{part}.{field}"
    return name if half_life is None else f"{name}@{half_life}s"


def _index(places: Sequence[int]) -> Index:
    """Places as an index: a slice, which costs no copy, where they follow each other."""
    if places and list(places) == list(range(places[0], places[-1] + 1)):
        return slice(places[0], places[-1] + 1)
    return np.array(places, np.intp)
