"""All detectors of a version: cuts, restarts, odd streams, size."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from models.drift.answers import Answers
from models.drift.monitor import Monitor
from models.drift.spec import Spec
from models.manifest import Manifest
from tests.unit.drift.streams import SPEC, START_MS, answers, beta, kinds, moved, told

encode = msgspec.msgpack.encode


@given(
    seed=st.integers(0, 2**32 - 1),
    levels=st.lists(st.tuples(st.floats(0.1, 0.97), st.integers(50, 2500)), min_size=1, max_size=4),
    spread=st.sampled_from([3.0, 20.0, 500.0]),
    apart_ms=st.sampled_from([1, 700, 200_000, 10_000_000]),
    preset=st.sampled_from(["default", "classic"]),
    sample=st.booleans(),
    broken=st.booleans(),
    backwards=st.booleans(),
    sizes=st.lists(st.integers(1, 900), min_size=1, max_size=12),
)
@settings(max_examples=25, deadline=None)
def test_no_cut_and_no_restart_changes_what_is_said_or_kept(
    seed: int,
    levels: list[tuple[float, int]],
    spread: float,
    apart_ms: int,
    preset: Any,
    sample: bool,
    broken: bool,
    backwards: bool,
    sizes: list[int],
) -> None:
    rng = np.random.default_rng(seed)
    values = beta(rng, *levels, spread=spread)
    if broken:
        values[rng.integers(0, len(values), 4)] = [np.nan, np.inf, -np.inf, 1.5]
    labels = np.concatenate([rng.random(n) < mean / 2 for mean, n in levels])
    stream = answers(values, apart_ms=apart_ms, best=labels)
    if backwards:
        stream.ts[:] += rng.integers(-30_000, 30_000, len(stream))
    known = tuple(sorted(rng.beta(8, 2, 600).tolist())) if sample else ()
    spec = Spec(name="churn", version="3", labels=("no", "yes"), preset=preset, reference_confidence=known)
    whole, cut = Monitor(spec), Monitor(spec)
    at_once, piece_by_piece = whole.fold(stream), []
    at = turn = 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        piece_by_piece += cut.fold(stream.take(slice(at, at + size)))
        if turn % 3 == 0:
            cut = moved(cut)
        at, turn = at + size, turn + 1
    assert piece_by_piece == at_once
    assert encode(cut.state) == encode(whole.state)
    assert encode(cut.frozen) == encode(whole.frozen)
    assert cut.page() == whole.page()
    for change in at_once:
        json.dumps(change.evidence, allow_nan=False)
    json.dumps(whole.page(), allow_nan=False)


def test_what_is_not_finite_is_left_out_and_counted() -> None:
    values = beta(np.random.default_rng(1), (0.8, 5000), (0.65, 2000))
    broken = np.insert(values, np.arange(0, 7000, 50), np.nan)
    broken[3] = np.inf
    monitor, clean = Monitor(SPEC), Monitor(SPEC)
    assert "drift" in kinds(told(monitor, answers(broken)))
    assert monitor.state.unusable == 141
    told(clean, answers(broken[np.isfinite(broken)]))
    assert monitor.state.confidence.adwin == clean.state.confidence.adwin
    only = Monitor(SPEC)
    assert only.fold(answers(np.full(10, np.nan))) == []
    assert (only.state.answers, only.state.unusable) == (0, 10)


def test_scores_that_are_all_the_same() -> None:
    for value in (0.0, 0.1, 0.9, 1.0):
        monitor = Monitor(SPEC)
        assert not told(monitor, answers(np.full(30_000, value), apart_ms=20))
        json.dumps(monitor.page(), allow_nan=False)
    assert "drift" in kinds(told(Monitor(SPEC), answers(np.repeat([0.9, 0.8], 4000))))


def test_a_regressor_without_an_interval_has_nothing_to_be_judged_by() -> None:
    spec = Spec(name="price", version="1", confident=False)
    monitor = Monitor(spec)
    stream = answers(np.ones(500))
    none = Answers(stream.partition, stream.offset, stream.ts, stream.best, stream.score, None, None)
    assert monitor.fold(none) == []
    assert (monitor.state.answers, monitor.state.source) == (500, "observations/2/499")
    assert "confidence" not in monitor.page()


def test_a_regressor_with_an_interval_has_confidence_and_no_labels() -> None:
    monitor = Monitor(Spec(name="price", version="1"))
    assert "drift" in kinds(told(monitor, answers(beta(np.random.default_rng(1), (0.8, 5000), (0.6, 1000)))))
    assert "labels" not in monitor.page()


def test_nothing_is_nothing() -> None:
    assert Monitor(SPEC).fold(answers(np.empty(0))) == []
    assert moved(Monitor(SPEC)).page() == Monitor(SPEC).page()


def test_confidence_over_the_whole_life_stays_a_curve_of_at_most_64_points() -> None:
    values = np.repeat([0.25, 0.75], 40_000)
    monitor = Monitor(SPEC)
    told(monitor, answers(values), 5000)
    page: Any = monitor.page()["confidence"]
    life = page["life"]
    assert (life["records"], len(life["points"])) == (1600, 50)
    assert [(one["mean"], one["deviation"]) for one in life["points"]] == [(0.25, 0.0)] * 25 + [(0.75, 0.0)] * 25
    assert life["points"][0]["ts"] == START_MS + 1599 * 1000


def test_what_is_kept_is_small_and_what_is_frozen_stays_the_same_object() -> None:
    labels = tuple(f"label {k}" for k in range(1000))
    monitor = Monitor(Spec(name="churn", version="3", labels=labels))
    rng = np.random.default_rng(1)
    largest = 0
    for _ in range(100):
        before = monitor.frozen
        monitor.fold(answers(rng.beta(8, 2, 1000), best=rng.integers(0, 1000, 1000)))
        largest = max(largest, len(encode(monitor.state)))
        assert (monitor.frozen is before) == (monitor.state.answers != 2000)
    assert largest < 24_000  # of it 16,000 for a count of each label, now and in the window before
    assert len(encode(monitor.frozen)) < 12_000
    two = Monitor(SPEC)
    told(two, answers(beta(rng, (0.8, 100_000))))
    assert len(encode(two.state)) < 8000


def test_a_spec_is_what_the_manifest_says() -> None:
    manifest = Manifest.model_validate(
        {
            "name": "churn",
            "version": "3",
            "inputs": {"x": {"fields": ["amount"]}},
            "outputs": {"probabilities": "p"},
            "labels": ["no", "yes"],
            "files": {"model.onnx": "0" * 64},
            "thresholds": {"low_confidence": 0.6},
            "reference_confidence": [0.9, 0.1, 0.5],
        }
    )
    spec = Spec.of(manifest, "classic")
    assert (spec.identity, spec.labels, spec.low_confidence) == ("churn@3", ("no", "yes"), 0.6)
    assert (spec.reference_confidence, spec.preset, spec.confident) == ((0.1, 0.5, 0.9), "classic", True)
    many = manifest.model_copy(update={"reference_confidence": tuple(k / 10_000 for k in range(10_000))})
    assert Spec.of(many).reference_confidence[::1999] == (0.0002, 0.9997)
    value = {"kind": "regressor", "outputs": {"value": "v"}, "labels": [], "reference_confidence": []}
    regressor = Manifest.model_validate(manifest.model_dump(exclude_none=True) | value)
    assert not Spec.of(regressor).confident
