"""Session aggregates against a recount in exact fractions, whatever the batches, the gaps and the order."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from core.errors import ManifestError, UsageError
from engine.columns import RowCodec
from tables.aggregates import Aggregates, Folded

NAN = math.nan
HALF_LIVES = {"30s": 30.0, "6h": 21_600.0}
UNORDERED = (
    "session.count",
    "session.mean_gap",
    *(f"session.{kind}.{name}" for kind in ("sum", "mean", "min", "max", "variance") for name in "ab"),
    *(f"session.decayed_mean.{name}@{half_life}" for half_life in HALF_LIVES for name in "ab"),
)
EVERYTHING = (
    *UNORDERED,
    "session.seconds_since_first",
    "session.seconds_since_last",
    *(f"session.{kind}.{name}" for name in "ba" for kind in ("last", "zscore")),
)
SESSIONS = 4
START = 1.7e12

Floats = NDArray[np.float64]

unhurried = settings(deadline=None)
"""A busy machine fails no law."""


@dataclass(frozen=True)
class Stream:
    """Events of a few sessions, and where it is cut into batches."""

    rows: NDArray[np.intp]
    ts: Floats
    values: Floats
    cuts: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def cut(self, *cuts: int) -> Stream:
        return Stream(self.rows, self.ts, self.values, cuts)

    def taken(self, order: Sequence[int]) -> Stream:
        places = np.array(order, np.intp)
        return Stream(self.rows[places], self.ts[places], self.values[places])

    def fold(self, aggregates: Aggregates) -> tuple[Floats, Floats, list[Folded]]:
        """Every event's features, the state in the end, what each batch answered."""
        state = np.tile(aggregates.empty, (SESSIONS, 1))
        batches = [slice(a, b) for a, b in pairwise((0, *self.cuts, len(self)))]
        parts = [aggregates.fold(state, self.rows[b], self.ts[b], self.values[b]) for b in batches]
        return np.concatenate([part.features for part in parts]), state, parts


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    n = draw(st.integers(0, 25))
    offset, scale = draw(st.sampled_from([0.0, 1e3, 1e9])), draw(st.sampled_from([1e-2, 1.0, 1e4]))
    numbers = st.integers(-1000, 1000).map(lambda i: offset + scale * i / 64)
    return Stream(
        rows=draw(arrays(np.intp, n, elements=st.integers(0, SESSIONS - 1))),
        ts=START + draw(arrays(np.int64, n, elements=st.integers(0, 600_000))).astype(np.float64),
        values=draw(arrays(np.float64, (n, 2), elements=st.one_of(numbers, numbers, numbers, st.just(NAN)))),
        cuts=tuple(sorted(draw(st.lists(st.integers(0, n), max_size=6)))),
    )


@dataclass
class Recount:
    """A session as the list of all that happened, from which each event's features are computed anew."""

    ttl_ms: float | None
    ts: list[float] = field(default_factory=list)
    values: dict[str, list[tuple[float, Fraction]]] = field(default_factory=lambda: {"a": [], "b": []})
    last: dict[str, float] = field(default_factory=dict)

    def event(self, ts: float, sent: dict[str, float]) -> dict[str, float]:
        """What the event sees, by feature."""
        newest = max(self.ts, default=None)
        if newest is not None and self.ttl_ms is not None and ts - newest > self.ttl_ms:
            self.ts, self.values, self.last, newest = [], {"a": [], "b": []}, {}, None
        self.ts.append(ts)
        gaps = [b - a for a, b in pairwise(sorted(self.ts))]
        seen = {
            "session.count": len(self.ts),
            "session.seconds_since_first": (ts - min(self.ts)) / 1e3,
            "session.seconds_since_last": NAN if newest is None else max(ts - newest, 0.0) / 1e3,
            "session.mean_gap": statistics.fmean(gaps) / 1e3 if gaps else NAN,
        }
        for name, x in sent.items():
            seen[f"session.zscore.{name}"] = self.zscore(name, x)
            if not math.isnan(x):
                self.values[name].append((ts, Fraction(x)))
                self.last[name] = x if newest is None or ts >= newest else self.last.get(name, NAN)
            seen |= self.aggregates(name)
        return seen

    def zscore(self, name: str, x: float) -> float:
        earlier = [value for _, value in self.values[name]]
        if math.isnan(x) or len(set(earlier)) < 2:
            return x if math.isnan(x) else 0.0
        return float(Fraction(x) - statistics.mean(earlier)) / math.sqrt(statistics.variance(earlier))

    def aggregates(self, name: str) -> dict[str, float]:
        values = [value for _, value in self.values[name]]
        weigh = {
            text: [Fraction(2 ** ((ts - max(self.ts)) / 1e3 / seconds)) for ts, _ in self.values[name]]
            for text, seconds in HALF_LIVES.items()
        }
        decayed = {
            f"session.decayed_mean.{name}@{text}": _ratio(sum(map(Fraction.__mul__, weights, values)), sum(weights))
            for text, weights in weigh.items()
        }
        return decayed | {
            f"session.sum.{name}": float(sum(values)) if values else NAN,
            f"session.mean.{name}": _ratio(sum(values), len(values)),
            f"session.min.{name}": float(min(values, default=NAN)),
            f"session.max.{name}": float(max(values, default=NAN)),
            f"session.variance.{name}": _variance(values),
            f"session.last.{name}": self.last.get(name, NAN),
        }

    def rounding(self, feature: str) -> float:
        """What rounding alone may do where numbers of both signs cancel out."""
        if feature.startswith(("session.sum", "session.mean.", "session.decayed_mean")):
            return 1e-14 * sum(abs(float(x)) for _, x in self.values[feature.split(".")[2][0]])
        return 1e-9 if feature.startswith("session.zscore") else 0.0


def _ratio(above: Fraction | int, below: Fraction | int) -> float:
    return float(Fraction(above) / Fraction(below)) if below else NAN


def _variance(values: Sequence[Fraction]) -> float:
    return float(statistics.variance(values)) if len(values) > 1 else 0.0 if values else NAN


@unhurried
@given(stream=streams(), ttl_ms=st.sampled_from([None, 60_000.0, 300_000.0]))
def test_every_feature_of_every_event_equals_a_recount(stream: Stream, ttl_ms: float | None) -> None:
    aggregates = Aggregates(EVERYTHING, ttl_ms)
    features, _, _ = stream.fold(aggregates)
    sessions = [Recount(ttl_ms) for _ in range(SESSIONS)]
    for i, row in enumerate(stream.rows):
        want = sessions[row].event(
            float(stream.ts[i]), dict(zip(aggregates.fields, stream.values[i].tolist(), strict=True))
        )
        for name, got in zip(aggregates.features, features[i], strict=True):
            close = pytest.approx(want[name], rel=1e-9, abs=sessions[row].rounding(name), nan_ok=True)
            assert got == close, f"event {i}: {name}"


@unhurried
@given(stream=streams())
def test_any_batching_gives_the_same_bits(stream: Stream) -> None:
    aggregates = Aggregates(EVERYTHING, 300_000.0)
    features, state, parts = stream.fold(aggregates)
    singly, state_singly, parts_singly = stream.cut(*range(1, len(stream))).fold(aggregates)
    assert np.array_equal(features, singly, equal_nan=True)
    assert np.array_equal(state, state_singly, equal_nan=True)
    late, late_singly = (np.concatenate([p.out_of_order for p in each]) for each in (parts, parts_singly))
    assert np.array_equal(late, late_singly)


@unhurried
@given(shuffled=streams().flatmap(lambda s: st.tuples(st.just(s), st.permutations(range(len(s))))))
def test_what_does_not_depend_on_order_ends_the_same_in_any_order(shuffled: tuple[Stream, Sequence[int]]) -> None:
    stream, order = shuffled
    aggregates = Aggregates(UNORDERED)
    other = stream.taken(order)
    ends = [dict(zip(each.rows.tolist(), each.fold(aggregates)[0], strict=True)) for each in (stream, other)]
    for row, end in ends[0].items():
        np.testing.assert_allclose(ends[1][row], end, rtol=1e-9, atol=1e-6)


@unhurried
@given(stream=streams())
def test_a_batch_tells_which_rows_it_changed_and_how_it_left_them(stream: Stream) -> None:
    aggregates = Aggregates(EVERYTHING)
    before = np.tile(aggregates.empty, (SESSIONS, 1))
    state = before.copy()
    _, touched, after, _ = aggregates.fold(state, stream.rows, stream.ts, stream.values)
    assert sorted(touched) == sorted(set(stream.rows.tolist()))
    assert np.array_equal(state[touched], after, equal_nan=True)
    others = np.setdiff1d(np.arange(SESSIONS), touched)
    assert np.array_equal(state[others], before[others], equal_nan=True)
    state[:] = -1
    assert not (after == -1).all(axis=1).any(), "a copy: later folds leave it alone"


@unhurried
@given(parts=st.lists(streams(), min_size=1, max_size=4))
def test_sessions_in_several_matrices_are_folded_together_as_they_would_be_alone(parts: list[Stream]) -> None:
    aggregates = Aggregates(EVERYTHING, 300_000.0)
    together, alone = ([np.tile(aggregates.empty, (SESSIONS, 1)) for _ in parts] for _ in range(2))
    ts, values = np.concatenate([part.ts for part in parts]), np.concatenate([part.values for part in parts])
    folded = aggregates.fold_apart(together, [part.rows for part in parts], ts, values)
    for got, state, part, own in zip(folded, together, parts, alone, strict=True):
        want = aggregates.fold(own, part.rows, part.ts, part.values)
        assert np.array_equal(state, own, equal_nan=True)
        assert np.array_equal(got.features, want.features, equal_nan=True)
        assert np.array_equal(got.out_of_order, want.out_of_order)
        assert sorted(got.touched) == sorted(want.touched)
        assert np.array_equal(got.after, state[got.touched], equal_nan=True)


def one_session(wanted: Sequence[str], events: Sequence[tuple[float, float]], ttl_ms: float | None = None) -> Folded:
    """Features of one session's events, given as (seconds, value)."""
    aggregates = Aggregates(wanted, ttl_ms)
    ts = START + 1e3 * np.array([when for when, _ in events])
    values = np.array([[x] * len(aggregates.fields) for _, x in events])
    return aggregates.fold(aggregates.empty[None].copy(), np.zeros(len(events), np.intp), ts, values)


@pytest.mark.parametrize("offset", [0.0, 1e9, -1e12])
def test_mean_and_variance_equal_numpy_over_a_long_session_at_any_offset(offset: float) -> None:
    noise = np.random.default_rng(7).normal(size=5_000)
    x = offset + noise
    features = one_session(["session.mean.v", "session.variance.v"], [(i, v) for i, v in enumerate(x)]).features
    exact = x - offset  # subtracting near numbers rounds nothing
    for n in (2, 3, 10, 5_000):
        np.testing.assert_allclose(features[n - 1], [np.mean(x[:n]), np.var(exact[:n], ddof=1)], rtol=1e-9)


def test_zscore_compares_a_value_with_those_before_it() -> None:
    seen = one_session(["session.zscore.v"], [(0, 10.0), (1, 12.0), (2, 14.0), (3, NAN), (4, 12.0)]).features[:, 0]
    np.testing.assert_allclose(seen, [0.0, 0.0, 3 / math.sqrt(2), NAN, 0.0], atol=1e-12)


def test_zscore_of_a_change_after_equal_values_is_zero_not_infinite() -> None:
    assert one_session(["session.zscore.v"], [(0, 0.1), (1, 0.1), (2, 0.1), (3, 9.0)]).features[3, 0] == 0.0


def test_an_older_event_is_counted_but_time_and_last_do_not_go_back() -> None:
    wanted = ["session.count", "session.last.v", "session.sum.v", "session.seconds_since_last", "session.mean_gap"]
    folded = one_session(wanted, [(100, 1.0), (40, 2.0), (103, 4.0)])
    assert folded.out_of_order.tolist() == [False, True, False]
    assert folded.features[1].tolist() == [2, 1.0, 3.0, 0.0, 60.0]
    assert folded.features[2].tolist() == [3, 4.0, 7.0, 3.0, 31.5]


def test_events_of_one_time_are_in_order_and_the_last_to_come_is_the_last() -> None:
    folded = one_session(["session.last.v", "session.seconds_since_last"], [(5, 1.0), (5, 2.0)])
    assert not folded.out_of_order.any()
    assert folded.features[1].tolist() == [2.0, 0.0]


def test_a_value_counts_half_after_its_half_life_whenever_it_arrives() -> None:
    wanted = ["session.decayed_mean.v@1h"]
    half = (0.5 * 8.0 + 1.0 * 2.0) / 1.5
    assert one_session(wanted, [(0, 8.0), (3600, 2.0)]).features[1, 0] == pytest.approx(half, rel=1e-12)
    assert one_session(wanted, [(3600, 2.0), (0, 8.0)]).features[1, 0] == pytest.approx(half, rel=1e-12)


def test_a_decayed_mean_outlives_any_silence_of_its_field() -> None:
    year = 365 * 86_400.0
    seen = one_session(["session.decayed_mean.v@30s"], [(0, 8.0), (year, NAN), (2 * year, 2.0), (0, 5.0)]).features
    assert seen[:, 0].tolist() == [8.0, 8.0, 2.0, 2.0]


@pytest.mark.parametrize("pause_s", [1800, 3600, 5 * 3600, 60 * 3600])
def test_a_decayed_mean_forgets_a_huge_value_without_a_trace_of_its_rounding(pause_s: int) -> None:
    values = [1.3, 1e20, *(1.1 + n / 7 for n in range(200))]
    seen = one_session(["session.decayed_mean.v@1h"], [(n * pause_s, v) for n, v in enumerate(values)]).features[:, 0]
    weights = [Fraction(2 ** (-n * pause_s / 3600)) for n in range(len(values))]
    for last, got in enumerate(seen):
        weighed = list(zip(weights, map(Fraction, values[last::-1]), strict=False))
        assert got == pytest.approx(float(sum(w * x for w, x in weighed) / sum(weights[: last + 1])), rel=1e-13)


def test_a_session_without_values_has_no_aggregates_of_them() -> None:
    wanted = [name for name in EVERYTHING if name.endswith((".a", "a@30s"))]
    assert np.isnan(one_session(wanted, [(0, NAN), (1, NAN)]).features).all()


def test_a_session_silent_for_longer_than_the_ttl_starts_anew() -> None:
    wanted = ["session.count", "session.sum.v", "session.seconds_since_last"]
    folded = one_session(wanted, [(0, 1.0), (60, 2.0), (120.001, 4.0), (30, 8.0)], ttl_ms=60_000)
    assert folded.features[:, :2].tolist() == [[1, 1.0], [2, 3.0], [1, 4.0], [2, 12.0]]
    assert math.isnan(folded.features[2, 2])
    assert folded.out_of_order.tolist() == [False, False, False, True], "an older event restarts nothing"


def test_features_come_in_the_order_asked_for_each_once() -> None:
    aggregates = Aggregates(["session.max.b", "session.count", "session.decayed_mean.a@60s", "session.max.b"])
    assert aggregates.features == ("session.max.b", "session.count", "session.decayed_mean.a@1m")
    assert aggregates.fields == ("b", "a")


def test_a_layout_keeps_only_what_its_features_need() -> None:
    assert Aggregates([]).columns == ("count", "first_ts", "last_ts")
    wanted = ["session.mean.x", "session.mean.y"]
    assert Aggregates(wanted).columns == ("count", "first_ts", "last_ts", "n.x", "n.y", "sum.x", "sum.y")


@unhurried
@given(stream=streams())
def test_what_a_model_has_learnt_of_a_session_outlives_a_model_that_asks_for_more(stream: Stream) -> None:
    """A row's columns don't depend on what else is kept, so a swap of models forgets nothing."""
    few, all_ = Aggregates(["session.mean.b", "session.decayed_mean.a@6h"]), Aggregates(EVERYTHING)
    half = len(stream) // 2
    first, second = stream.taken(range(half)), stream.taken(range(half, len(stream)))
    swap = [few.fields.index(name) for name in all_.fields]
    state = np.tile(few.empty, (SESSIONS, 1))
    few.fold(state, first.rows, first.ts, first.values[:, swap])
    state = RowCodec(all_.columns, all_.empty).adopt(few.columns, state)
    seen = all_.fold(state, second.rows, second.ts, second.values).features
    want, _, _ = stream.fold(all_)
    for name in (*few.features, "session.count", "session.seconds_since_last", "session.mean_gap"):
        place = all_.features.index(name)
        assert np.array_equal(seen[:, place], want[half:, place], equal_nan=True), name


def test_a_raw_feature_is_no_aggregate() -> None:
    with pytest.raises(UsageError, match="'value' is a raw feature"):
        Aggregates(["value"])
    with pytest.raises(ManifestError, match="median"):
        Aggregates(["session.median.value"])
