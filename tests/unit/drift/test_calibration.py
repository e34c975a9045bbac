"""Calibration: fitted as scikit-learn fits it, applied to every answer, and kept out of golden examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from sklearn.isotonic import IsotonicRegression

from core.errors import GoldenMismatchError, ManifestError, UsageError
from models.calibrating import isotonic, temperature
from models.calibration import Isotonic, Temperature
from models.folder import ModelFolder
from models.golden import check_golden, warm_up
from models.manifest import Manifest
from models.proving import loaded
from models.scores import Scores
from tests.unit.graphs import folder, linear, manifest

FILES = {"model.onnx": "0" * 64}


def overconfident(seed: int, n: int, labels: int, by: float) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(n, labels) probabilities that are `by` times too steep in their logits, and what was true."""
    random = np.random.default_rng(seed)
    logits = random.normal(scale=1.5, size=(n, labels))
    true = softmax(logits, axis=1)
    truth = (true.cumsum(axis=1) > random.random((n, 1))).argmax(axis=1)
    return softmax(logits * by, axis=1), truth


@pytest.mark.parametrize("labels", [2, 5])
@pytest.mark.parametrize("by", [0.5, 1.0, 2.5])
def test_the_temperature_is_where_scipy_finds_the_smallest_log_loss(labels: int, by: float) -> None:
    p, truth = overconfident(1, 3000, labels, by)

    def loss(log_t: float) -> float:
        logs = log_softmax(np.log(p) / np.exp(log_t), axis=1)
        return -float(logs[np.arange(len(truth)), truth].mean())

    best = np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-9}).x)
    assert temperature(p, truth).temperature == pytest.approx(best, rel=1e-4)
    assert temperature(p, truth).temperature == pytest.approx(by, rel=0.15)


def test_a_temperature_of_labels_told_without_error_is_bounded() -> None:
    p = np.array([[0.9, 0.1], [0.2, 0.8]] * 10)
    assert temperature(p, [0, 1] * 10).temperature == pytest.approx(0.01, rel=1e-3)
    assert temperature(p, [1, 0] * 10).temperature == pytest.approx(100, rel=1e-3)


def test_isotonic_is_scikit_learns_but_never_certain() -> None:
    p, truth = overconfident(2, 4000, 2, 2.0)
    ours = isotonic(p, truth)
    theirs = IsotonicRegression(out_of_bounds="clip").fit(p[:, 1], truth)
    x = np.linspace(0, 1, 1001)
    got = ours.applied(np.stack((1 - x, x), axis=1).astype(np.float32))
    off = 1 / (len(truth) + 2)
    x32 = x.astype(np.float32).astype(float)
    assert got[:, 1] == pytest.approx(np.clip(theirs.predict(x32), off, 1 - off), abs=2e-4)
    assert got.sum(axis=1) == pytest.approx(np.ones(1001), abs=1e-6)
    assert got.min() > 0
    assert got.max() < 1


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_isotonic_pools_any_labels_as_scikit_learn_does(data: st.DataObject) -> None:
    rows = st.tuples(st.integers(0, 12), st.integers(0, 1))
    drawn = np.array(data.draw(st.lists(rows, min_size=2, max_size=60)), float)
    p, truth = drawn[:, 0] / 12, drawn[:, 1]
    ours = isotonic(p, truth)
    theirs = IsotonicRegression(out_of_bounds="clip").fit(p, truth).predict(np.array(ours.given))
    off = 1 / (len(p) + 2)
    assert np.array(ours.meant) == pytest.approx(np.clip(theirs, off, 1 - off), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    weights=st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=20),
    t=st.floats(0.05, 20),
)
def test_a_temperature_keeps_the_order_of_labels_and_rows_that_sum_to_1(weights: list[list[float]], t: float) -> None:
    p = np.array(weights, np.float32) + np.float32(1e-3)
    p /= p.sum(axis=1, keepdims=True)
    for columns in (3, 2):
        rows = p[:, :columns] / p[:, :columns].sum(axis=1, keepdims=True)
        got = Temperature(temperature=t).applied(rows)
        assert got.dtype == np.float32
        assert got.sum(axis=1) == pytest.approx(np.ones(len(rows)), abs=1e-5)
        expected = softmax(np.log(rows.astype(float)) / t, axis=1)
        assert got == pytest.approx(expected, abs=2e-5)
        clear = np.sort(expected, axis=1)[:, -1] - np.sort(expected, axis=1)[:, -2] > 1e-4
        assert (got.argmax(axis=1) == rows.argmax(axis=1))[clear].all()


def test_certain_answers_stay_finite() -> None:
    p = np.array([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5], [-5e-4, 1.0005]], np.float32)
    for t in (0.01, 1.0, 100.0):
        got = Temperature(temperature=t).applied(p)
        assert np.isfinite(got).all()
        assert got[2] == pytest.approx([0.5, 0.5])
    assert Temperature(temperature=0.01).applied(p)[0, 1] == 1.0


def test_answers_and_their_confidence_are_calibrated_and_broken_rows_stay_broken() -> None:
    said = manifest(files=FILES, calibration={"method": "temperature", "temperature": 2.0})
    rows = np.array([[0.1, 0.9], [np.nan, 0.5], [0.8, 0.2]], np.float32)
    scores = Scores.of(Manifest.model_validate(said), {"probabilities": rows})
    assert scores.matrix[0].tolist() == pytest.approx([0.25, 0.75])
    assert scores.matrix[2].tolist() == pytest.approx([2 / 3, 1 / 3])
    assert scores.broken.tolist() == [1]
    assert scores.matrix[1].tolist() == [0, 0]
    assert scores.confidence is not None
    assert scores.confidence[1] == 0
    plain = Scores.of(Manifest.model_validate(manifest(files=FILES)), {"probabilities": rows})
    assert plain.confidence is not None
    assert (scores.confidence < plain.confidence)[[0, 2]].all()


def test_an_isotonic_calibration_may_turn_an_answer() -> None:
    said = manifest(files=FILES, calibration={"method": "isotonic", "given": [0.2, 0.6], "meant": [0.1, 0.4]})
    scores = Scores.of(Manifest.model_validate(said), {"probabilities": np.array([0.6, 0.9], np.float32)})
    assert scores.matrix[:, 1].tolist() == pytest.approx([0.4, 0.4])
    assert scores.best.tolist() == [0, 0]


def test_golden_examples_are_about_the_graph_itself(tmp_path: Path) -> None:
    golden = [{"inputs": {"value": 0.9}, "expected": {"leave": 0.9}}]
    calibration = {"method": "temperature", "temperature": 2.0}
    path = folder(tmp_path, linear(), golden=golden, calibration=calibration)
    with loaded(ModelFolder.open(path, "churn", "1")) as runtime:
        scores = Scores.of(runtime.manifest, runtime.compute({"X": np.array([[0.9]], np.float32)}))
        assert scores.matrix[0, 1] == pytest.approx(0.75)
    wrong = json.loads((path / "manifest.json").read_text()) | {
        "golden": [{"inputs": {"value": 0.9}, "expected": {"leave": 0.75}}]
    }
    made = Manifest.model_validate(wrong)
    with pytest.raises(GoldenMismatchError):
        check_golden(made, lambda arrays: {"probabilities": np.hstack((1 - arrays["X"], arrays["X"]))})


def test_a_calibration_hides_no_logits() -> None:
    made = Manifest.model_validate(manifest(files=FILES, calibration={"method": "temperature", "temperature": 1.0}))
    with pytest.raises(ManifestError, match="sum to 1"):
        warm_up(made, lambda arrays: {"probabilities": np.full((len(arrays["X"]), 2), 0.9, np.float32)})


@pytest.mark.parametrize(
    ("calibration", "said"),
    [
        ({"method": "temperature", "temperature": 0}, "greater than or equal to 0.01"),
        ({"method": "temperature", "temperature": "nan"}, "temperature"),
        ({"method": "platt"}, "'temperature', 'isotonic'"),
        ({"method": "isotonic", "given": [0.5, 0.4], "meant": [0.1, 0.2]}, "given must grow"),
        ({"method": "isotonic", "given": [0.4, 0.5], "meant": [0.2, 0.1]}, "meant must not fall"),
        ({"method": "isotonic", "given": [0.4], "meant": [0.2, 0.3]}, "given has 1 probabilities, meant 2"),
    ],
)
def test_a_calibration_that_can_not_be_is_refused(calibration: dict[str, Any], said: str) -> None:
    with pytest.raises(ManifestError, match=said):
        Manifest.parse(json.dumps(manifest(files=FILES, calibration=calibration)), "churn@1")


def test_a_regressor_and_three_labels_have_no_isotonic_calibration() -> None:
    fitted = isotonic(np.array([0.2, 0.8]), [0, 1])
    three = manifest(files=FILES, labels=["a", "b", "c"], calibration=fitted.model_dump())
    with pytest.raises(ManifestError, match="two labels"):
        Manifest.parse(json.dumps(three), "churn@1")
    value = manifest(files=FILES, kind="regressor", labels=[], outputs={"value": "v"}) | {
        "calibration": Temperature(temperature=2).model_dump()
    }
    with pytest.raises(ManifestError, match="a regressor has no calibration"):
        Manifest.parse(json.dumps(value), "churn@1")


@pytest.mark.parametrize(
    ("p", "truth"),
    [
        ([[0.1, 0.9]], [2]),
        ([[0.1, 0.9]], [-1]),
        ([[0.1, 0.9]], [0.5]),
        ([[np.nan, 0.9]], [1]),
        ([[0.9]], [0]),
        ([], []),
    ],
)
def test_what_can_not_be_fitted_is_refused(p: Any, truth: Any) -> None:
    for fit in (temperature, isotonic):
        with pytest.raises(UsageError):
            fit(np.array(p), truth)


def test_a_fitted_calibration_survives_the_manifest() -> None:
    p, truth = overconfident(3, 500, 2, 2.0)
    for fitted in (temperature(p, truth), isotonic(p, truth)):
        made = Manifest.parse(json.dumps(manifest(files=FILES, calibration=fitted.model_dump())), "churn@1")
        assert made.calibration == fitted
        assert made.uncalibrated.calibration is None
    assert isinstance(fitted, Isotonic)
