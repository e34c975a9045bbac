"""manifest.json: what may stand in it, and that every mistake is told with its place."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from core.errors import ManifestError
from models.features import Kind, SessionFeature
from models.manifest import Manifest
from tests.unit.graphs import manifest

FILES = {"model.onnx": "0" * 64}
RICH: dict[str, Any] = manifest(
    files=FILES,
    inputs={
        "X": {
            "dtype": "float32",
            "fields": [
                "value",
                {"name": "age", "default": 40},
                {"name": "income", "default": "nan"},
                "session.count",
                {"name": "session.decayed_mean.value@60s", "default": 2.5},
            ],
        },
        "country": {"dtype": "string", "fields": [{"name": "country", "default": "??"}]},
        "flags": {"dtype": "bool", "fields": [{"name": "member", "default": False}]},
        "ids": {"dtype": "int64", "fields": ["shop", "session.count"]},
    },
    thresholds={"low_confidence": 0.6, "decision": {"label": "leave", "above": 0.85}},
    reference_confidence=[0.2, 0.9],
    golden=[
        {
            "inputs": {
                "value": 1,
                "age": None,
                "income": 3e4,
                "session.count": 2,
                "session.decayed_mean.value@1m": 1.5,
                "country": "CH",
                "member": True,
                "shop": 7,
            },
            "expected": {"leave": 0.4},
        }
    ],
    licence="CC0-1.0",
    made_by="by hand",
)


def read(said: dict[str, Any]) -> Manifest:
    return Manifest.parse(json.dumps(said), "churn@1: manifest.json")


def test_a_manifest_tells_what_fills_each_column_and_what_sessions_must_keep() -> None:
    got = read(RICH)
    assert got.identity == "churn@1"
    assert got.raw_fields == ("value", "age", "income", "country", "member", "shop")
    assert got.session_features == (
        SessionFeature(Kind.COUNT),
        SessionFeature(Kind.DECAYED_MEAN, "value", 60),
    )
    x = got.inputs["X"]
    assert [field.required for field in x.fields] == [True, False, False, False, False]
    assert [x.default(column) for column in (0, 1, 3, 4)] == [None, 40.0, 0.0, 2.5]
    assert math.isnan(x.default(2))  # type: ignore[arg-type]  # a float32 input's default is a number
    assert got.inputs["country"].default(0) == "??"
    assert got.inputs["flags"].default(0) is False
    assert (got.inputs["ids"].default(0), got.inputs["ids"].default(1)) == (None, 0)


def test_what_is_written_is_read_back_equal(tmp_path: Path) -> None:
    first = read(RICH)
    assert Manifest.read(first.write(tmp_path), "churn@1") == first


def test_a_golden_example_may_spell_a_half_life_in_another_unit() -> None:
    assert "session.decayed_mean.value@1m" in read(RICH).golden[0].inputs


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": "../2"}, "version"),
        ({"name": ""}, "name"),
        ({"colour": "red"}, "colour"),
        ({"format": 2}, "format"),
        ({"labels": ["stay"]}, "two labels"),
        ({"labels": ["stay", "stay"]}, "differ"),
        ({"files": {"other.onnx": "0" * 64}}, "model.onnx"),
        ({"files": {"model.onnx": "abc"}}, "files.model.onnx"),
        ({"inputs": {}}, "inputs"),
        ({"inputs": {"X": {"fields": []}}}, "inputs.X.fields"),
        ({"inputs": {"X": {"fields": ["session.mode.value"]}}}, "session.variance.FIELD"),
        ({"inputs": {"X": {"dtype": "string", "fields": ["session.count"]}}}, "can't fill an input of string"),
        ({"inputs": {"X": {"dtype": "int64", "fields": [{"name": "a", "default": 0.5}]}}}, "no int64"),
        ({"inputs": {"X": {"dtype": "int64", "fields": [{"name": "a", "default": "nan"}]}}}, "no int64"),
        ({"inputs": {"X": {"dtype": "bool", "fields": [{"name": "a", "default": 1}]}}}, "no bool"),
        ({"inputs": {"X": {"dtype": "float32", "fields": [{"name": "a", "default": "one"}]}}}, "no float32"),
        ({"inputs": {"X": {"dtype": "complex64", "fields": ["a"]}}}, "float32"),
        ({"inputs": {"X": {"dtype": "int8", "fields": [{"name": "a", "default": 300}]}}}, "from -128 to 127"),
        ({"inputs": {"X": {"dtype": "uint16", "fields": [{"name": "a", "default": -1}]}}}, "from 0 to 65535"),
        ({"inputs": {"X": {"dtype": "float16", "fields": [{"name": "a", "default": 1e5}]}}}, "-65504 to 65504"),
        ({"outputs": {}}, "probabilities"),
        ({"outputs": {"value": "v"}}, "probabilities"),
        ({"kind": "regressor"}, "value"),
        ({"thresholds": {"decision": {"label": "go", "above": 0.5}}}, "decision.label"),
        ({"thresholds": {"low_confidence": 1.5}}, "thresholds.low_confidence"),
        ({"golden": [{"inputs": {}, "expected": {"leave": 0.5}}]}, "value"),
        ({"golden": [{"inputs": {"value": 1, "b": 2}, "expected": {"leave": 0.5}}]}, "'b'"),
        ({"golden": [{"inputs": {"value": 1}, "expected": {"go": 0.5}}]}, "'go'"),
        ({"golden": [{"inputs": {"value": None}, "expected": {"leave": 0.5}}]}, "no default"),
        ({"golden": [{"inputs": {"value": "x"}, "expected": {"leave": 0.5}}]}, "no float32"),
        ({"golden": [{"inputs": {"value": 1}, "expected": {}}]}, "golden.0.expected"),
    ],
)
def test_a_mistake_is_told_with_the_version_and_its_place(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ManifestError) as refused:
        read(manifest(files=FILES) | change)
    assert str(refused.value).startswith("churn@1: manifest.json: ")
    assert told in str(refused.value)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff\xfe", b'{"name": "churn"}'])
def test_what_is_no_manifest_is_told_as_such(raw: bytes) -> None:
    with pytest.raises(ManifestError, match=r"^churn@1: "):
        Manifest.parse(raw, "churn@1")


def test_a_regressor_has_a_value_and_perhaps_an_interval_and_no_labels() -> None:
    got = read(
        manifest(
            files=FILES,
            kind="regressor",
            labels=[],
            outputs={"value": "v", "interval": {"output": "i", "widest": 10}},
            thresholds={"decision": {"above": 3}},
            golden=[{"inputs": {"value": 1}, "expected": {"value": 2}}],
        )
    )
    assert got.outputs.interval is not None
    with pytest.raises(ManifestError, match="has none"):
        read(manifest(files=FILES, kind="regressor", outputs={"value": "v"}))
