"""ADWIN finds what river's finds."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from river.drift import ADWIN

from models.drift.adwin import Adwin, Cut
from models.drift.batch import UNIT


def found(values: NDArray[Any], sizes: Iterable[int]) -> tuple[list[int], Adwin]:
    """Where ours finds a change, and its state, through msgpack after each batch."""
    adwin, at, places = Adwin(), 0, list[int]()
    for size in sizes:
        if at >= len(values):
            break
        units = np.rint(values[at : at + size] * UNIT).astype(np.int64)
        sums = np.concatenate(([0], np.cumsum(units)))
        squares = np.concatenate(([0], np.cumsum(units * units)))
        places += [at + cut.at - 1 for cut in adwin.fold(sums, squares)]
        adwin = msgspec.msgpack.decode(msgspec.msgpack.encode(adwin), type=Adwin)
        at += size
    return places, adwin


def _adwin() -> Any:
    made: Any = ADWIN
    return made()


def rivers(values: NDArray[Any]) -> list[int]:
    detector: Any = _adwin()
    places = []
    for place, value in enumerate(values.tolist()):
        detector.update(value)
        if detector.drift_detected:
            places.append(place)
    return places


def test_rivers_documented_example() -> None:
    """`Change detected at index 1023, input value: 4`; its values 0 to 7 scaled into [0, 1] keep the place."""
    draw = random.Random(12345)
    values = np.array(draw.choices([0, 1], k=1000) + draw.choices(range(4, 8), k=1000), float)
    assert rivers(values) == [1023]
    assert found(values / 8, [2000])[0] == rivers(values / 8) == [1023]


@given(
    seed=st.integers(0, 2**32 - 1),
    levels=st.lists(st.tuples(st.floats(0.02, 0.98), st.integers(1, 1500)), min_size=1, max_size=5),
    spread=st.sampled_from([2.0, 20.0, 2000.0]),
    sizes=st.lists(st.integers(1, 500), min_size=1, max_size=20),
)
@example(seed=0, levels=[(0.9765625, 880), (0.9375, 272)], spread=20.0, sizes=[1])
@settings(max_examples=25, deadline=None)
def test_any_stream_in_any_batches_changes_where_river_says(
    seed: int, levels: list[tuple[float, int]], spread: float, sizes: list[int]
) -> None:
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.beta(mean * spread, (1 - mean) * spread, n) for mean, n in levels])
    values = np.rint(values * UNIT) / UNIT  # ours knows no finer steps
    whole, left = found(values, [len(values)])
    assert whole == rivers(values)
    assert found(values, sizes * (len(values) // sum(sizes) + 1)) == (whole, left)


def test_constant_and_two_valued_streams_change_where_river_says() -> None:
    for values in (np.full(5000, 1.0), np.zeros(3000), np.repeat([1.0, 0.0], 700), np.tile([0.0, 1.0], 2000)):
        assert found(values, [300] * 20)[0] == rivers(values)


def test_a_cut_says_what_was_on_both_sides() -> None:
    units = np.repeat([UNIT // 2, UNIT // 4], 640)
    sums, squares = np.concatenate(([0], np.cumsum(units))), np.concatenate(([0], np.cumsum(units * units)))
    cut: Cut = Adwin().fold(sums, squares)[0]
    assert (cut.before, cut.after, cut.width) == (0.5, 0.25, cut.at)
    assert cut.at - cut.since == 640


def test_its_memory_stays_small() -> None:
    rng = np.random.default_rng(1)
    _, adwin = found(rng.beta(8, 2, 200_000), [5000] * 40)
    assert adwin.width == 200_000
    assert len(msgspec.msgpack.encode(adwin)) < 4096
