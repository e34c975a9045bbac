"""Estimators become model folders that compute the same to 1e-5, or an error that names them."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from core.errors import ConversionError
from models.convert import convert
from models.folder import ModelFolder
from models.manifest import Decision, InputField, Kind
from models.proving import loaded
from models.scores import Scores
from models.store import ModelStore

CANCER = load_breast_cancer(as_frame=True)
IRIS = load_iris(as_frame=True)
DIABETES = load_diabetes(as_frame=True)


def boosters(kind: str) -> Any:
    """LightGBM's or XGBoost's."""
    package = importlib.import_module("lightgbm" if kind.startswith("LGBM") else "xgboost")
    quiet = {"verbose": -1} if kind.startswith("LGBM") else {}
    return getattr(package, kind)(n_estimators=20, n_jobs=1, **quiet)


def answers(made: ModelFolder, inputs: dict[str, Any]) -> Any:
    with loaded(made) as runtime:
        return Scores.of(made.manifest, runtime.compute(inputs))


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """Libraries warn each other of what comes in their next releases. One thread: more wait for each other here."""
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize(
    ("make", "data"),
    [
        (lambda: make_pipeline(StandardScaler(), LogisticRegression()), CANCER),
        (lambda: GradientBoostingClassifier(n_estimators=10), CANCER),
        (lambda: RandomForestClassifier(10), IRIS),
        (lambda: CalibratedClassifierCV(LinearSVC()), IRIS),
        (lambda: boosters("LGBMClassifier"), CANCER),
        (lambda: boosters("LGBMClassifier"), IRIS),
        (lambda: make_pipeline(StandardScaler(), boosters("LGBMClassifier")), CANCER),
        (lambda: boosters("XGBClassifier"), CANCER),
        (lambda: boosters("XGBClassifier"), IRIS),
    ],
)
def test_a_classifier_computes_its_probabilities_in_onnx_too(make: Any, data: Any, tmp_path: Path) -> None:
    estimator = make()
    half = len(data.data) // 2
    shuffled = data.data.sample(frac=1, random_state=0).astype(np.float32)
    estimator.fit(shuffled[:half], data.target[shuffled.index[:half]])
    unseen = shuffled[half:]
    made = convert(estimator, name="m", version="1", rows=unseen, into=tmp_path / "m")
    scores = answers(made, {"features": unseen.to_numpy()})
    assert np.abs(scores.matrix - estimator.predict_proba(unseen)).max() <= 1e-5
    said = made.manifest
    assert [field.name for _, field in said.fields()] == list(data.data.columns)
    assert said.labels == tuple(map(str, sorted(set(data.target))))
    assert len(said.golden) >= 2
    assert len(said.reference_confidence) == 200
    assert np.mean(scores.low_confidence) <= 0.09
    assert ModelStore(str(tmp_path / "store")).publish(made.path).identity == "m@1"


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_pipeline(StandardScaler(), Ridge()),
        lambda: RandomForestRegressor(10),
        lambda: boosters("LGBMRegressor"),
        lambda: boosters("XGBRegressor"),
    ],
)
def test_a_regressor_gives_its_value(make: Any, tmp_path: Path) -> None:
    x = DIABETES.data.astype(np.float32)
    estimator = make().fit(x[:300], DIABETES.target[:300])
    fields = [f"session.mean.{name}" for name in x.columns]
    made = convert(estimator, fields, name="m", version="1", rows=x[300:], into=tmp_path / "m")
    assert made.manifest.kind is Kind.REGRESSOR
    assert [feature.name for feature in made.manifest.session_features] == fields
    scores = answers(made, {"features": x[300:].to_numpy()})
    np.testing.assert_allclose(scores.matrix[:, 0], estimator.predict(x[300:]), rtol=1e-5, atol=1e-3)
    assert scores.confidence is None


@pytest.fixture
def customers() -> Any:
    """Numbers, whole numbers, a flag and texts."""
    x = CANCER.data
    return pd.DataFrame(
        {
            "age": x.iloc[:, 0],
            "visits": x.iloc[:, 1].astype(int),
            "member": x.iloc[:, 4] > 0.1,
            "city": np.where(x.iloc[:, 2] > 80, "bern", "ulm"),
            "tier": np.where(x.iloc[:, 3] > 500, "gold", "none"),
        }
    )


def test_a_pipeline_over_numbers_and_texts_gets_an_input_for_each_column(customers: Any, tmp_path: Path) -> None:
    chosen = ColumnTransformer(
        [
            ("numbers", StandardScaler(), ["age", "visits"]),
            ("texts", OneHotEncoder(handle_unknown="ignore"), ["city", "tier", "member"]),
        ]
    )
    estimator = make_pipeline(chosen, LogisticRegression()).fit(customers, CANCER.target.map({0: "ill", 1: "well"}))
    fields = [*customers.columns[:4], InputField(name="tier", default="none")]
    decision = Decision(label="ill", above=0.3)
    made = convert(estimator, fields, name="m", version="1", rows=customers, into=tmp_path / "m", decision=decision)
    said = made.manifest
    assert {name: given.dtype.value for name, given in said.inputs.items()} == {
        "age": "float32",
        "visits": "int64",
        "member": "int64",
        "city": "string",
        "tier": "string",
    }
    assert said.labels == ("ill", "well")
    assert said.thresholds.decision == decision
    assert said.golden[0].inputs.keys() == set(customers.columns)
    given = {name: customers[[name]].to_numpy() for name in ("visits", "member", "city", "tier")}
    given = {name: values.astype(said.inputs[name].dtype.numpy) for name, values in given.items()}
    scores = answers(made, {**given, "age": customers[["age"]].to_numpy(np.float32)})
    assert np.abs(scores.matrix - estimator.predict_proba(customers)).max() <= 1e-5


def test_texts_alone_are_one_input(customers: Any, tmp_path: Path) -> None:
    texts = customers[["city", "tier"]]
    estimator = make_pipeline(OneHotEncoder(), LogisticRegression()).fit(texts, CANCER.target)
    made = convert(estimator, name="m", version="1", rows=texts, into=tmp_path / "m")
    assert {name: given.dtype.value for name, given in made.manifest.inputs.items()} == {"features": "string"}


def test_gaps_are_filled_as_the_fields_say(tmp_path: Path) -> None:
    estimator = boosters("XGBClassifier")
    x = CANCER.data.iloc[:, :3].astype(np.float32).copy()
    x.iloc[::3, 1] = np.nan
    estimator.fit(x, CANCER.target)
    for default in (None, "nan"):
        fields = [InputField(name="a"), InputField(name="b", default=default), InputField(name="c")]
        made = convert(estimator, fields, name="m", version="1", rows=x, into=tmp_path / str(default))
        gaps = [example.inputs["b"] for example in made.manifest.golden]
        assert (None in gaps) == (default == "nan")


def test_without_rows_the_proof_is_made_on_noise(tmp_path: Path) -> None:
    estimator = LogisticRegression().fit(IRIS.data.to_numpy(), IRIS.target)
    made = convert(estimator, ["a", "b", "c", "d"], name="m", version="1", into=tmp_path / "m")
    assert made.manifest.reference_confidence == ()
    assert made.manifest.thresholds.low_confidence == 0.7
    assert len(made.manifest.golden) == 8


def test_names_that_nobody_has_given_are_no_fields(tmp_path: Path) -> None:
    estimator = boosters("LGBMClassifier").fit(IRIS.data.to_numpy(), IRIS.target)
    with pytest.raises(ConversionError, match="name the fields of the columns"):
        convert(estimator, name="m", version="1", into=tmp_path / "m")
    made = convert(estimator, ["a", "b", "c", "d"], name="m", version="1", into=tmp_path / "m")
    assert [field.name for _, field in made.manifest.fields()] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"labels": ["a", "b"]}, "^LogisticRegression has 3 scores a row"),
        ({"name": "a b"}, "name: "),
        ({"decision": Decision(label="9", above=0.5)}, r"decision\.label is '9'"),
        ({"fields": ["a", "b", "c", "session.mode.d"]}, r"session\.variance\.FIELD"),
    ],
)
def test_what_is_said_wrongly_is_told(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    estimator = LogisticRegression(max_iter=1000).fit(IRIS.data.to_numpy(), IRIS.target)
    said: dict[str, Any] = {"fields": ["a", "b", "c", "d"], "name": "m", "version": "1", "into": tmp_path / "m"}
    with pytest.raises(ConversionError, match=says):
        convert(estimator, **{**said, **change})
    assert not (tmp_path / "m").exists()


def test_the_same_estimator_gives_the_same_bytes(tmp_path: Path) -> None:
    estimator = LogisticRegression().fit(IRIS.data, IRIS.target)
    both = [convert(estimator, name="m", version="1", rows=IRIS.data, into=tmp_path / str(n)).sha256 for n in (1, 2)]
    assert both[0] == both[1]


class OurOwn:
    """What isn't an estimator."""


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda x, y: HistGradientBoostingClassifier(max_iter=5).fit(x, y),
            r"^HistGradientBoostingClassifier can't be",
        ),
        (lambda x, y: LinearSVC().fit(x, y), r"^LinearSVC can't be converted: it has no predict_proba"),
        (lambda x, y: LogisticRegression(), r"^LogisticRegression can't compute the rows: NotFitted"),
        (
            lambda x, y: DummyClassifier().fit(x, 0 * y),
            r"^DummyClassifier can't .* of one class",
        ),
        (
            lambda x, y: GaussianNB(var_smoothing=0).fit(0 * x, y),
            r"^GaussianNB can't .* of row 0 it makes \[nan",
        ),
        (lambda x, y: Ridge().fit(x, np.stack([y, y], 1)), r"^Ridge can't be converted: it has several outputs"),
        (lambda x, y: KMeans(2).fit(x), r"^KMeans can't be converted: it is neither a classifier nor a regressor"),
        (lambda x, y: OurOwn(), r"^OurOwn can't be converted: it is no estimator"),
        (lambda x, y: boosters("LGBMClassifier").fit(x, y).booster_, r"^Booster can't .*LGBMClassifier"),
    ],
)
def test_what_cannot_be_converted_is_named_and_leaves_nothing(make: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=says):
        convert(make(IRIS.data, IRIS.target), name="m", version="1", rows=IRIS.data, into=tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_graph_that_computes_something_else_is_found_out(tmp_path: Path) -> None:
    """XGBoost splits where values lie: behind a scaler, rounding carries some of them to the other side."""
    estimator = make_pipeline(StandardScaler(), boosters("XGBClassifier")).fit(
        CANCER.data.astype(np.float32), CANCER.target
    )
    with pytest.raises(ConversionError, match=r"^Pipeline and its ONNX graph differ in [\d,]+ of 569 rows.* scaler"):
        convert(estimator, name="m", version="1", rows=CANCER.data, into=tmp_path / "m")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("fields", "rows", "says"),
    [
        (["a", "b"], np.zeros((3, 4)), "2 fields for 4 columns|rows must be"),
        (["a", "b", "c", "d"], np.zeros((0, 4)), r"rows must be \(n, 4\), n > 0"),
        (None, np.zeros((3, 4)), "name the fields"),
    ],
)
def test_rows_that_do_not_fit_are_told(fields: Any, rows: Any, says: str, tmp_path: Path) -> None:
    estimator = LogisticRegression().fit(IRIS.data.to_numpy(), IRIS.target)
    with pytest.raises(ConversionError, match=says):
        convert(estimator, fields, name="m", version="1", rows=rows, into=tmp_path / "m")
