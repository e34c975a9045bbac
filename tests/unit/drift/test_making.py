"""Versions that are made with data: what they looked like, how good they are, and whether their probabilities hold."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.naive_bayes import GaussianNB
from threadpoolctl import threadpool_limits

from cli.adding import add
from core.errors import ConversionError, ManifestError, ModelError
from models.adding import Wishes
from models.convert import convert
from models.drift.tally import BINS
from models.manifest import InputField
from models.proving import loaded
from models.reference import CategoryReference, NumberReference
from models.scores import Scores
from models.store import ModelStore
from models.watched import Watched
from tests.unit.graphs import linear

X, Y = load_breast_cancer(return_X_y=True)
NAMES = [f"f{i}" for i in range(5)]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    with threadpool_limits(1):
        yield


def naive() -> Any:
    """Overconfident, as naive Bayes is where features go together."""
    return GaussianNB().fit(X[::2, :5], Y[::2])


@pytest.mark.parametrize("how", [None, "temperature", "isotonic"])
def test_a_converted_model_knows_its_features_and_how_good_it_is(how: Any, tmp_path: Path) -> None:
    estimator, rows, truth = naive(), X[1::2, :5].astype(np.float32), Y[1::2]
    made = convert(estimator, NAMES, name="m", version="1", rows=rows, truth=truth, calibrate=how, into=tmp_path / "1")
    manifest = made.manifest
    assert list(manifest.features) == NAMES
    assert all(isinstance(each, NumberReference) and each.rows == len(rows) for each in manifest.features.values())
    with loaded(made) as runtime:
        answered = Scores.of(manifest, runtime.compute({"features": rows})).matrix
    kept = slice(1, None, 2) if how else slice(None)
    assert manifest.performance is not None
    measured = manifest.performance.measured
    assert measured is not None
    assert measured.rows == len(truth[kept])
    assert measured.accuracy == pytest.approx((answered[kept].argmax(axis=1) == truth[kept]).mean(), abs=0.011)
    assert measured.auc == pytest.approx(roc_auc_score(truth[kept], answered[kept, 1]), abs=1 / BINS)
    assert measured.log_loss == pytest.approx(log_loss(truth[kept], answered[kept]), abs=1e-2)
    assert (manifest.calibration and manifest.calibration.method) == how
    if how:
        plain = estimator.predict_proba(rows)[kept]
        assert measured.log_loss < 0.8 * log_loss(truth[kept], plain)


def test_a_regressor_knows_its_error() -> None:
    x, y = load_diabetes(return_X_y=True)
    model = Ridge().fit(x[::2, :5], y[::2])
    made = convert(model, NAMES, name="m", version="1", rows=x[1::2, :5], truth=y[1::2])
    assert made.manifest.performance is not None
    measured = made.manifest.performance.measured
    assert measured is not None
    assert measured.mae == pytest.approx(np.abs(model.predict(x[1::2, :5]) - y[1::2]).mean(), rel=1e-3)


def test_what_can_not_be_measured_or_calibrated_is_refused() -> None:
    rows = X[:20, :5]
    for said, more in (
        ("needs the truth of its rows", {"calibrate": "isotonic"}),
        ("truth has shape", {"truth": Y[:3]}),
        ("truth names 7; the classes are 0, 1", {"truth": np.full(20, 7)}),
    ):
        with pytest.raises(ConversionError, match=said):
            convert(naive(), NAMES, name="m", version="1", rows=rows, **more)


def test_gaps_that_training_filled_are_filled_for_the_detectors_too() -> None:
    """Rows for training have the default where a session has no value yet: the stream then has it too."""
    model = LogisticRegression(max_iter=1000).fit(X[:, :2], Y)
    fields = [InputField(name="value"), InputField(name="session.mean_gap", default=9.5)]
    manifest = convert(model, fields, name="m", version="1", rows=X[:50, :2]).manifest
    watched = Watched(manifest, ("value",), ("session.mean_gap",))
    got = watched.of([{}], np.array([[3.0]]), np.array([[np.nan]]))
    assert got.tolist() == [[3.0, 9.5]]


def test_an_onnx_file_gets_its_reference_from_a_csv_file(tmp_path: Path) -> None:
    (tmp_path / "churn.onnx").write_bytes(linear(width=2).SerializeToString())
    (tmp_path / "sample.csv").write_text("id,value,age,left\n1,0.5,,yes\n2,0.7,30,no\n")
    store = ModelStore(str(tmp_path / "store"))
    wishes = Wishes(fields=("value,age",), labels=("no", "yes"), reference=tmp_path / "sample.csv")
    report = add(store, tmp_path / "churn.onnx", wishes)
    manifest = store.manifest("churn", "1")
    assert list(manifest.features) == ["value", "age"]
    assert manifest.features["age"].missing == 0.5
    assert any("features watched" in line and "value, age" in line for line in report.lines)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ManifestError, match="the fields are value, age"):
        add(store, tmp_path / "churn.onnx", Wishes(**{**vars_of(wishes), "reference": tmp_path / "other.csv"}))
    with pytest.raises(ModelError, match="can't be read as CSV"):
        add(store, tmp_path / "churn.onnx", Wishes(**{**vars_of(wishes), "reference": tmp_path / "none.csv"}))


def vars_of(wishes: Wishes) -> dict[str, Any]:
    return {name: getattr(wishes, name) for name in wishes.__dataclass_fields__}


def test_a_pickle_is_proved_on_the_rows_of_a_csv_file(tmp_path: Path) -> None:
    frame = pd.DataFrame(X[:200, :3], columns=["a", "b", "c"])
    (tmp_path / "m.pkl").write_bytes(pickle.dumps(LogisticRegression(max_iter=1000).fit(frame, Y[:200])))
    frame.assign(diagnosis="x").to_csv(tmp_path / "sample.csv", index=False)
    store = ModelStore(str(tmp_path / "store"))
    add(store, tmp_path / "m.pkl", Wishes(trust_pickle=True, reference=tmp_path / "sample.csv"))
    manifest = store.manifest("m", "1")
    assert list(manifest.features) == ["a", "b", "c"]
    assert len(manifest.reference_confidence) > 10
    assert len(manifest.golden) > 1
    frame[["a", "b"]].to_csv(tmp_path / "lacking.csv", index=False)
    with pytest.raises(ConversionError, match="no column c"):
        add(store, tmp_path / "m.pkl", Wishes(trust_pickle=True, reference=tmp_path / "lacking.csv"))


def test_texts_of_a_frame_are_categories(tmp_path: Path) -> None:
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    frame = pd.DataFrame({"amount": X[:60, 0], "country": ["ch", "de", "fr"] * 20})
    encode = ColumnTransformer([("c", OneHotEncoder(), ["country"])], remainder="passthrough")
    model = make_pipeline(encode, LogisticRegression(max_iter=2000)).fit(frame, Y[:60])
    features = convert(model, name="m", version="1", rows=frame, into=tmp_path / "1").manifest.features
    assert isinstance(features["amount"], NumberReference)
    assert isinstance(features["country"], CategoryReference)
    assert features["country"].shares == pytest.approx({"ch": 1 / 3, "de": 1 / 3, "fr": 1 / 3})
