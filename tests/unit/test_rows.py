"""From events' features to a model's inputs: gaps are filled as the manifest says, what can't be filled is named."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
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


def test_an_empty_text_is_a_text_and_no_gap() -> None:
    rows = Rows(manifest(s={"dtype": "string", "fields": ["c", {"name": "d", "default": "none"}]}), (), ())
    empty = np.empty((2, 0))
    assert rows.build([{"c": "", "d": ""}, {"c": "x", "d": None}], empty, empty)["s"].tolist() == [
        ["", ""],
        ["x", "none"],
    ]


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


WHOLE = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-(2**15), 2**15 - 1), "uint16": (0, 2**16 - 1)}
WHOLE |= {"int32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1)}


@pytest.mark.parametrize("dtype", WHOLE)
def test_a_number_that_its_whole_type_cannot_hold_is_named_with_the_range(dtype: str) -> None:
    low, high = WHOLE[dtype]
    rows = Rows(manifest(i={"dtype": dtype, "fields": [{"name": "k", "default": 1}]}), ("k",), ())
    events: list[dict[str, Any]] = [{"k": v} for v in (low, high, low - 1, high + 1, 0.5, 1e30)] + [{}]
    errors: Errors = {}
    found = numbers(events, ("k",))
    rows.check(events, found, errors)
    assert sorted(errors) == [2, 3, 4, 5]
    assert f"field 'k' is {high + 1}; its input in manifest.json takes a whole number from {low} to {high}" == str(
        errors[3]
    )
    built = rows.build([events[0], events[1], events[6]], found[[0, 1, 6]], np.empty((3, 0)))["i"]
    assert (built.dtype, built.tolist()) == (np.dtype(dtype), [[low], [high], [1]])


@pytest.mark.parametrize(("dtype", "beyond"), [("int64", 2.0**63), ("uint64", 2.0**64), ("uint64", -1.0)])
def test_the_widest_whole_types_have_an_end_too(dtype: str, beyond: float) -> None:
    rows = Rows(manifest(i={"dtype": dtype, "fields": ["k"]}), ("k",), ())
    errors: Errors = {}
    events: list[dict[str, Any]] = [{"k": beyond}, {"k": 2.0**62}]
    found = numbers(events, ("k",))
    rows.check(events, found, errors)
    assert list(errors) == [0]
    assert rows.build(events[1:], found[1:], np.empty((1, 0)))["i"].tolist() == [[2**62]]


def test_a_bool_is_true_false_one_or_zero() -> None:
    rows = Rows(manifest(b={"dtype": "bool", "fields": ["ok"]}), ("ok",), ())
    events: list[dict[str, Any]] = [{"ok": True}, {"ok": 0.0}, {"ok": 2.0}, {"ok": 0.5}]
    errors: Errors = {}
    found = numbers(events, ("ok",))
    rows.check(events, found, errors)
    assert sorted(errors) == [2, 3]
    assert "takes true or false" in str(errors[2])
    assert rows.build(events[:2], found[:2], np.empty((2, 0)))["b"].tolist() == [[True], [False]]


def test_beyond_a_float16_is_a_gap_as_beyond_a_float32_is() -> None:
    fields = ["x", {"name": "y", "default": 0.5}, "session.sum.y"]
    rows = Rows(manifest(h={"dtype": "float16", "fields": fields}), ("x", "y"), ("session.sum.y",))
    events: list[dict[str, Any]] = [{"x": 1.5, "y": 1e5}, {"x": 1e5, "y": 2.0}]
    errors: Errors = {}
    found = numbers(events, ("x", "y"))
    rows.check(events, found, errors)
    assert list(errors) == [1]
    built = rows.build(events[:1], found[:1], np.array([[1e6]]))["h"]
    assert (built.dtype.name, built.tolist()) == ("float16", [[1.5, 0.5, 0.0]])


def test_an_aggregate_beyond_a_whole_type_takes_its_default_and_never_wraps_around() -> None:
    fields = [{"name": "session.count", "default": 127}]
    rows = Rows(manifest(i={"dtype": "int8", "fields": fields}), (), ("session.count",))
    assert rows.build([{}, {}], np.empty((2, 0)), np.array([[7.0], [300.0]]))["i"].tolist() == [[7], [127]]
