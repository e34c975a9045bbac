"""Running aggregates of sessions: the columns of a session's row, and the fold that advances rows by batches.

The engine keeps a float64 matrix a partition, a row per session and a column per name in `Aggregates.columns`.
Training uses the same fold, so that a model sees in production what it saw when it learnt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.errors import UsageError
from models.features import SessionFeature, parse
from tables.accumulators import FAMILIES, Bools, Events, Family, Floats

Rows = NDArray[np.intp]

LAST_TS: Final = 2
"""Place of last_ts in every layout."""


class Folded(NamedTuple):
    """What a batch of n events left behind."""

    features: Floats
    """(n, len(Aggregates.features)) as each event saw its session; NaN where there is no value yet."""
    touched: Rows
    """(m,) the rows that changed, each once."""
    after: Floats
    """(m, ncols) a copy of them, as this batch left them."""
    out_of_order: Bools
    """(n,) the event was older than its session's newest: what depends on order left it out."""


class Aggregates:
    """Which aggregates a session keeps, and how events change them.

    wanted: session features, or their names ("session.mean.value"). ttl_ms: event time of silence after which the
    next event starts its session anew. Raises ManifestError for an unknown name, UsageError for a raw one.

    An event sees its session with itself folded in, but for two features: zscore compares the event's value with
    the values before it (0.0 with fewer than two, or where they are all equal), and seconds_since_last is the gap
    to the newest earlier event. Variance is the sample's (ddof=1; 0.0 with one value). All times are in seconds.

    An event that is older than its session's newest is folded where order doesn't matter: count, sum, mean, min,
    max, variance, decayed_mean (with the weight of its age), the session's first time, mean_gap. It is left out of
    last, seconds_since_last is 0.0, and zscore compares it with the values that were folded before it.
    """

    def __init__(self, wanted: Iterable[str | SessionFeature], ttl_ms: float | None = None) -> None:
        kept = dict.fromkeys(_session(feature) for feature in wanted)
        self.features: Final = tuple(feature.name for feature in kept)
        """Names of the columns of Folded.features, in the order asked for, each once."""
        self.fields: Final = tuple(dict.fromkeys(f.field for f in kept if f.field is not None))
        """The raw fields whose values fold() takes, in this order."""
        families = [family(tuple(kept), self.fields) for family in FAMILIES]
        self._families: Final[list[tuple[Family, slice]]] = []
        columns: list[str] = []
        for family in families:
            if family.columns:
                self._families.append((family, slice(len(columns), len(columns) + len(family.columns))))
                columns += family.columns
        self.columns: Final = tuple(columns)
        """Names of a row's columns: count, first_ts, last_ts, then what the wanted features need."""
        self.read_from: Final = {
            feature.name: family.columns_of(feature)
            for family in families
            for feature in kept
            if feature.kind in family.kinds
        }
        """Feature -> the columns that it is read from."""
        self.empty: Final[Floats] = np.array([value for family in families for value in family.empty], np.float64)
        """(ncols,) the row of a session without events."""
        self.empty.setflags(write=False)
        self.readable: Final = tuple(name for family, _ in self._families for name in family.named())
        """Names of what read() says."""
        self.ttl_ms: Final = ttl_ms

    def fold(self, state: Floats, rows: Rows, ts: Floats, values: Floats) -> Folded:
        """Folds n events into their sessions' rows, in place; events of one session in the order given.

        state: (cap, ncols). rows: (n,) each event's row in it. ts: (n,) ms since epoch. values: (n, len(fields)),
        NaN where the event has no value; finite ones within a float32's reach, else squares overflow and the
        session's variance is lost. Any cut of a stream into batches gives the same bits.
        """
        [folded] = self.fold_apart([state], [rows], ts, values)
        return folded

    def fold_apart(self, states: Sequence[Floats], rows: Sequence[Rows], ts: Floats, values: Floats) -> list[Folded]:
        """As fold(), for sessions in several matrices: ten events cost as much as a hundred, so they go together.

        rows: a part for each matrix; the events of ts and values follow each other as the parts do.
        """
        sizes, begins = [len(each) for each in rows], accumulate(map(len, states), initial=0)
        parts = [slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
        order, ends = _rounds(np.concatenate([each + begin for each, begin in zip(rows, begins, strict=False)]))
        if order is None:
            seats, touched, cuts = None, list(rows), parts
        else:
            seats = np.argsort(order[: ends[0]])  # of the sessions as their first events come
            first = order[seats]
            bounds = np.searchsorted(first, [0, *(part.stop for part in parts)])
            cuts = [slice(*bound) for bound in pairwise(bounds.tolist())]
            touched = [each[first[cut] - part.start] for each, cut, part in zip(rows, cuts, parts, strict=True)]
        before = np.concatenate([state.take(each, axis=0) for state, each in zip(states, touched, strict=True)])
        if seats is None:
            after, features, late = self._advance(before, order, ends, ts, values)
        else:
            seated = np.empty_like(before)
            seated[seats] = before
            seated, features, late = self._advance(seated, order, ends, ts, values)
            after = seated.take(seats, axis=0)
        for state, each, cut in zip(states, touched, cuts, strict=True):
            state[each] = after[cut]
        return [
            Folded(features[part], each, after[cut], late[part])
            for part, each, cut in zip(parts, touched, cuts, strict=True)
        ]

    def _advance(
        self, rows: Floats, order: Rows | None, ends: list[int], ts: Floats, values: Floats
    ) -> tuple[Floats, Floats, Bools]:
        """The rows (m, ncols) of the sessions of the first round after all rounds, and what the n events see."""
        n = len(ts)
        work = np.ascontiguousarray(rows.T)
        when = ts if order is None else ts[order]
        x = np.ascontiguousarray((values if order is None else values[order]).T)
        missing = np.isnan(x)
        some = bool(missing.any())
        out = np.empty((len(self.features), n))
        late = np.empty(n, np.bool_)
        start = 0
        with np.errstate(all="ignore"):  # NaN and 0/0 mean "no value yet"
            for end in ends:
                part = slice(start, end)
                absent = missing[:, part] if some else None
                self._round(work[:, : end - start], when[part], x[:, part], absent, out[:, part], late[part])
                start = end
        after = np.ascontiguousarray(work.T)
        if order is None:
            return after, np.ascontiguousarray(out.T), late
        features, out_of_order = np.empty((n, len(self.features))), np.empty_like(late)
        features[order], out_of_order[order] = out.T, late
        return after, features, out_of_order

    def read(self, row: list[float]) -> list[float]:
        """The features that a session's row alone says, as `readable` names them: not zscore and seconds_since_last,
        which compare it with an event. NaN where there is no value yet."""
        known: list[float] = []
        for family, place in self._families:
            columns, width = row[place], len(family.keys)
            for key in range(width):
                known += family.known(columns[key::width])
        return known

    def _round(self, work: Floats, ts: Floats, x: Floats, missing: Bools | None, out: Floats, late: Bools) -> None:
        """Folds at most one event a session. work: (ncols, n), the rest as in fold(), transposed."""
        if self.ttl_ms is not None:
            expired = ts - work[LAST_TS] > self.ttl_ms
            if expired.any():
                work[:, expired] = self.empty[:, None]
        newest = work[LAST_TS].copy()
        np.less(ts, newest, out=late)
        events = Events(ts, newest, late, x, missing)
        for family, block in self._families:
            family.fold(work[block], events, out)


def _session(feature: str | SessionFeature) -> SessionFeature:
    parsed = parse(feature) if isinstance(feature, str) else feature
    if not isinstance(parsed, SessionFeature):
        raise UsageError(f"{parsed.name!r} is a raw feature; a session keeps session.* features")
    return parsed


def _rounds(rows: Rows) -> tuple[Rows | None, list[int]]:
    """Cuts a batch into rounds with at most one event a session: first all first events, then all second ones, ...

    Returns the events by round (None: as they are) and where each round ends. Inside a round those come first whose
    sessions have most events, so that each round concerns a prefix of the sessions of the first.
    """
    n = len(rows)
    by_row = np.argsort(rows, kind="stable")
    sorted_rows = rows[by_row]
    first = np.flatnonzero(np.concatenate(([True], sorted_rows[1:] != sorted_rows[:-1]))[:n])
    if len(first) == n:
        return None, [n] if n else []
    sizes = np.diff(first, append=n)
    busiest = np.argsort(-sizes, kind="stable")
    seat = np.empty(len(first), np.intp)
    seat[busiest] = np.arange(len(first))
    occurrence = np.arange(n) - np.repeat(first, sizes)
    order = by_row[np.argsort(occurrence * len(first) + np.repeat(seat, sizes))]
    return order, np.cumsum(np.bincount(occurrence)).tolist()
