"""What a manifest says of features: made of a sample, and events read by it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import ManifestError
from models.describing import NAMED, QUANTILES, described, sample_of
from models.manifest import Manifest
from models.reference import CategoryReference, NumberReference, packed, unpacked
from models.rows import numbers
from models.watched import Watched
from tests.unit.graphs import manifest

FILES = {"model.onnx": "0" * 64}


def of(features: Any, fields: tuple[str, ...] = ("value",)) -> Manifest:
    said = {name: each if isinstance(each, dict) else each.model_dump() for name, each in features.items()}
    inputs = {"X": {"fields": list(fields)}}
    return Manifest.parse(json.dumps(manifest(files=FILES, inputs=inputs, features=said)), "churn@1")


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.floats(-1e6, 1e6, width=32) | st.none() | st.just(float("nan")), min_size=1, max_size=300))
def test_a_number_is_described_exactly_at_its_knots(values: list[float | None]) -> None:
    there = np.array([v for v in values if v is not None and not math.isnan(v)], np.float32)
    references = described({"value": values})
    if not len(there):
        assert references == {}
        return
    [reference] = references.values()
    assert isinstance(reference, NumberReference)
    assert reference.rows == len(values)
    assert reference.missing == pytest.approx(1 - len(there) / len(values), abs=1e-8)
    assert (reference.values[0], reference.values[-1]) == (there.min(), there.max())
    for knot, share in zip(reference.values, reference.up_to, strict=True):
        assert share == pytest.approx((there <= np.float32(knot)).mean(), abs=1e-8)
    assert len(reference.values) <= QUANTILES
    assert of(references).features == references


def test_categories_are_the_most_frequent_and_the_rest_is_one() -> None:
    column = [f"c{i}" for i in range(NAMED + 10) for _ in range(NAMED + 10 - i)] + [None] * 5
    [reference] = described({"country": column}).values()
    assert isinstance(reference, CategoryReference)
    assert list(reference.shares)[:2] == ["c0", "c1"]
    assert len(reference.shares) == NAMED
    assert sum(reference.shares.values()) + reference.rest == pytest.approx(1)
    assert reference.rest == pytest.approx(sum(range(1, 11)) / (len(column) - 5))
    assert reference.missing == pytest.approx(5 / len(column))


def test_truths_and_numbers_that_name_something_are_categories() -> None:
    found = described({"member": [True, False, None], "shop": [3, 3.0, 2.5]}, categories=["shop"])
    assert {name: list(getattr(each, "shares", ())) for name, each in found.items()} == {
        "member": ["false", "true"],
        "shop": ["3", "2.5"],
    }


def test_a_data_frame_is_a_sample_too() -> None:
    frame = pd.DataFrame({"a": [1, 2, 3], "b": pd.array([1, None, 3], "Int64"), "c": ["x", None, "y"]})
    found = described({str(name): frame[name].tolist() for name in frame})
    assert [type(each).__name__ for each in found.values()] == [
        "NumberReference",
        "NumberReference",
        "CategoryReference",
    ]
    assert found["b"].missing == pytest.approx(1 / 3)


def test_a_csv_file_is_a_sample(tmp_path: Path) -> None:
    path = tmp_path / "sample.csv"
    path.write_text("amount,country,member\n1.5,ch,true\n,,false\n2,de,\n")
    assert sample_of(path) == {
        "amount": [1.5, None, 2.0],
        "country": ["ch", None, "de"],
        "member": [True, False, None],
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a line of names"),
        ("a,b\n", "a row at least"),
        ("a,a\n1,2\n", "each once"),
        ("a,b\n1\n", "line 2: 1 cells"),
    ],
)
def test_a_csv_file_that_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "sample.csv"
    path.write_text(text)
    with pytest.raises(ManifestError, match=said):
        sample_of(path)


def test_a_sample_that_can_not_be_described_is_refused() -> None:
    with pytest.raises(ManifestError, match="differ in length"):
        described({"a": [1], "b": [1, 2]})
    with pytest.raises(ManifestError, match="texts and numbers"):
        described({"a": [1, "x"]})
    with pytest.raises(ManifestError, match="no column b"):
        described({"a": [1]}, categories=["b"])


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ({"value": {"type": "number", "rows": 3, "values": [1, 2], "up_to": [0.5]}}, "1 shares for 2 values"),
        ({"value": {"type": "number", "rows": 3, "values": [2, 1], "up_to": [0.5, 1]}}, "must grow"),
        ({"value": {"type": "number", "rows": 3, "values": [1, 2], "up_to": [0.5, 0.9]}}, "up_to ends with 0.9"),
        ({"value": {"type": "number", "rows": 0, "values": [1], "up_to": [1]}}, "features.value.number.rows"),
        ({"country": {"type": "category", "rows": 3, "shares": {"a": 0.5}}}, "sum to 0.5"),
        ({"country": {"rows": 3}}, "discriminator 'type'"),
        ({"session.count": {"type": "number", "rows": 3, "values": [1], "up_to": [1]}}, "fills no input"),
        ({" x": {"type": "number", "rows": 3, "values": [1], "up_to": [1]}}, "blanks around"),
    ],
)
def test_a_reference_that_can_not_be_is_refused(features: dict[str, Any], said: str) -> None:
    with pytest.raises(ManifestError, match=said):
        of(features)


def test_a_session_feature_is_no_category() -> None:
    with pytest.raises(ManifestError, match="it is a number"):
        of({"session.count": CategoryReference(rows=1, shares={"1": 1.0})}, ("value", "session.count"))


def test_events_are_read_by_the_reference() -> None:
    features = described(
        {
            "amount": [1.0, 2.0],
            "value": [1.0, 2.0],
            "country": ["ch", "de"],
            "member": [True, False],
            "shop": [3, 7],
            "session.count": [1, 2],
            "session.mean.value": [1, None],
        },
        categories=["shop"],
    )
    made = of(features, ("value", "session.count", "session.mean.value"))
    events: list[dict[str, Any]] = [
        {"value": 1, "amount": 5.5, "country": "de", "member": True, "shop": 7},
        {"value": 2.5, "amount": None, "country": None, "member": False, "shop": 3.0},
        {"value": 3, "amount": "much", "country": "fr", "member": "true", "shop": "7"},
        {"value": 4, "amount": 1e300, "country": 5, "shop": True},
    ]
    fields = ("other", "value")
    found = numbers(events, fields)
    session = np.array([[9.0, 1.0], [np.nan, np.nan], [9.0, 1e300], [9.0, 4.0]])
    got = Watched(made, fields, ("session.mean.value", "session.count")).of(events, found, session)
    assert got.dtype == np.float32
    nan = np.nan
    expected = [
        [5.5, 1, 1, 1, 1, 1, 9],
        [nan, 2.5, nan, 0, 0, 0, nan],
        [nan, 3, -1, 1, 1, 0, 9],
        [nan, 4, -1, nan, -1, 4, 9],
    ]
    assert np.array_equal(got, np.array(expected, np.float32), equal_nan=True)
    assert len(Watched(made, fields, ("session.mean.value", "session.count"))) == 7


def test_references_survive_being_packed() -> None:
    features = described({"b": [1.0, 0.1, None], "a": ["x", "y", "x"]})
    assert unpacked(packed(features)) == features
    assert list(unpacked(packed(features))) == ["b", "a"]


def test_manifests_without_these_parts_are_written_as_before(tmp_path: Path) -> None:
    made = Manifest.model_validate(manifest(files=FILES))
    assert not {"features", "calibration", "performance"} & json.loads(made.write(tmp_path).read_text()).keys()
