"""From events' features to a model's inputs: gaps are filled as the manifest says, what can't be filled is named."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from models.manifest import Manifest
from models.rows import Errors, Rows, numbers, texts

NAN = math.nan


def manifest(**inputs: Any) -> Manifest:
    return Manifest.model_validate(
        {
            "name": "m",
            "version": "1",
            "inputs": inputs,
            "outputs": {"probabilities": "p"},
            "labels": ["a", "b"],
            "files": {"model.onnx": "0" * 64},
        }
    )


def test_what_is_missing_null_not_finite_or_beyond_a_float32_is_a_gap() -> None:
    events: list[dict[str, Any]] = [
        {"x": 1.0, "y": 2.0},
        {"x": None, "y": True},
        {"y": 1e39},
        {"x": -1e300, "y": False},
    ]
    found = numbers(events, ("x", "y"))
    np.testing.assert_array_equal(found, [[1, 2], [NAN, 1], [NAN, NAN], [NAN, 0]])


def test_a_text_where_a_number_belongs_is_an_error_of_its_event_alone() -> None:
    rows = Rows(manifest(i={"fields": [{"name": "x", "default": 0}]}), ("x",), ())
    errors: Errors = {}
    events: list[dict[str, Any]] = [{"x": 1.0}, {"x": "1.5"}, {"x": 2.0}, {}]
    found = numbers(events, ("x",))
    rows.check(events, found, errors)
    assert list(errors) == [1]
    assert "'x'" in str(errors[1])
    np.testing.assert_array_equal(found[[0, 2, 3]], [[1], [2], [NAN]])


def test_a_text_is_none_of_those_who_want_no_number_there() -> None:
    fields = ("x", "y")
    other, textual = (manifest(i={"fields": ["y"]}), manifest(s={"dtype": "string", "fields": ["x"]}))
    events: list[dict[str, Any]] = [{"x": "de", "y": 1.0}]
    found = numbers(events, fields)
    for one in (other, textual):
        errors: Errors = {}
        Rows(one, fields, ()).check(events, found, errors)
        assert not errors
    errors = {}
    texts(events, found, fields, [0], errors)
    assert "'x'" in str(errors[0])


def test_a_required_field_that_is_missing_is_named_and_a_default_fills_the_others() -> None:
    rows = Rows(manifest(i={"fields": ["x", {"name": "y", "default": 7}]}), ("x", "y"), ())
    events: list[dict[str, Any]] = [{"x": 1.0}, {"y": 2.0}]
    errors: Errors = {}
    found = numbers(events, ("x", "y"))
    rows.check(events, found, errors)
    assert list(errors) == [1]
    assert "'x'" in str(errors[1])
    inputs = rows.build(events[:1], found[:1], np.empty((1, 0)))
    np.testing.assert_array_equal(inputs["i"], [[1, 7]])
    assert inputs["i"].dtype == np.float32


def test_session_features_without_a_value_and_beyond_a_float32_take_their_default() -> None:
    fields = ["session.count", {"name": "session.variance.x", "default": -1}]
    rows = Rows(manifest(i={"fields": fields}), (), ("session.count", "session.variance.x"))
    built = rows.build([{}, {}, {}], np.empty((3, 0)), np.array([[1, NAN], [2, 1e60], [3, 0.5]]))
    np.testing.assert_array_equal(built["i"], np.array([[1, -1], [2, -1], [3, 0.5]], np.float32))


def test_each_input_gets_its_own_type() -> None:
    rows = Rows(
        manifest(
            f={"fields": ["x"]},
            n={"dtype": "int64", "fields": ["k"]},
            b={"dtype": "bool", "fields": ["ok"]},
            s={"dtype": "string", "fields": ["c", {"name": "d", "default": "none"}]},
        ),
        ("x", "k", "ok"),
        (),
    )
    events: list[dict[str, Any]] = [
        {"x": 0.5, "k": 3.0, "ok": True, "c": "de"},
        {"x": 0.5, "k": 3.5, "ok": True, "c": "de"},
        {"x": 0.5, "k": 3.0, "ok": True, "c": 5.0},
    ]
    errors: Errors = {}
    found = numbers(events, ("x", "k", "ok"))
    rows.check(events, found, errors)
    assert {i: str(e).split("'")[1] for i, e in errors.items()} == {1: "k", 2: "c"}
    inputs = rows.build(events[:1], found[:1], np.empty((1, 0)))
    assert {name: (array.dtype.kind, array.tolist()) for name, array in inputs.items()} == {
        "f": ("f", [[0.5]]),
        "n": ("i", [[3]]),
        "b": ("b", [[True]]),
        "s": ("O", [["de", "none"]]),
    }


Value = st.one_of(st.none(), st.booleans(), st.floats(allow_nan=False, width=32))


@given(events=st.lists(st.dictionaries(st.sampled_from("xyz"), Value), max_size=20))
def test_the_fast_way_and_the_careful_way_agree(events: list[dict[str, Any]]) -> None:
    found = numbers(events, ("x", "y"))
    assert found.shape == (len(events), 2)
    for event, row in zip(events, found.tolist(), strict=True):
        for field, value in zip("xy", row, strict=True):
            expected = event.get(field)
            if expected is None or not math.isfinite(expected):
                assert math.isnan(value)
            else:
                assert value == float(expected)
