"""From a trained estimator to a folder that a store takes, proved on rows that you give."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from core.errors import ConversionError
from models.calibrating import Method, fitted
from models.confidence import confidence
from models.convert.boosters import NEEDED
from models.convert.columns import Columns
from models.convert.onnx import graph_of
from models.describing import described
from models.drift.outcomes import Outcome
from models.drift.tally import Tally
from models.folder import ModelFolder
from models.manifest import MODEL, Decision, Golden, InputField, Kind, Manifest, Outputs, Thresholds, mistakes
from models.proving import loaded
from models.quality import Performance, Quality
from models.scores import VALUE, Scores

PARITY: Final = 1e-5
"""Largest difference between a probability of the estimator and one of the graph; of values, times the largest."""
DOUBTFUL: Final = 0.08
"""Share of the rows whose confidence counts as low: the classic share of doubtful answers."""
QUANTILES: Final = 200
"""The reference's size: its distribution is then known within .25 %, a fiftieth of what drift detection looks for."""
EXAMPLES: Final = 8

Floats = NDArray[np.floating[Any]]


def convert(
    estimator: Any,
    fields: Sequence[str | InputField] | None = None,
    *,
    name: str,
    version: str,
    rows: Any = None,
    into: Path | None = None,
    labels: Sequence[str] | None = None,
    decision: Decision | None = None,
    truth: Any = None,
    calibrate: Method | None = None,
    licence: str | None = None,
    made_by: str | None = None,
) -> ModelFolder:
    """Makes an estimator of scikit-learn (a pipeline too), LightGBM or XGBoost a model folder: ready for publish().

    fields: what fills each column, in order: raw features of the event ("value"), or of its session
    ("session.mean.value"); an InputField has a default for gaps. By default the columns' own names.
    rows: real ones, best those that it wasn't trained on: a matrix, or a data frame, which may hold texts. The graph
    must compute on all of them what the estimator computes; some become golden examples; their confidences and their
    features become the reference, and 8 % of them count as doubtful. Without rows all columns are numbers, and what is
    compared is noise.
    truth: of each row the label (the estimator's own class) or the value: how good the version is there is what labels
    that come back are held against. calibrate: how its probabilities are made true; then half of the rows are for that,
    and the other half for how good it is.
    into: a folder that doesn't exist yet; by default a temporary one. labels: by default the estimator's classes.

    Raises ConversionError that names the estimator where it can't be converted, or computes something else then.
    """
    who = type(estimator).__name__
    classifier = _is_classifier(estimator, who)
    with _in_words(who):
        columns = Columns.of(estimator, fields, rows)
    expected = _expected(estimator, columns, classifier, who)
    if labels is None and classifier:
        labels = [str(label) for label in estimator.classes_]
    if labels is not None and len(labels) != (expected.shape[1] if classifier else 0):
        raise ConversionError(f"{who} has {expected.shape[1]} scores a row, and {list(labels)} names others")
    real = rows is not None and classifier
    true = None if truth is None else _truth(estimator, truth, expected, classifier)
    if calibrate and (true is None or not classifier):
        raise ConversionError(f"{who} can't be calibrated: that needs the truth of its rows, and a classifier")
    calibration = fitted(calibrate, expected[::2], true[::2]) if calibrate and true is not None else None
    answered = expected if calibration is None else calibration.applied(expected.astype(np.float32))
    graph = graph_of(estimator, columns, f"{name}@{version}", classifier)
    with _in_words(who):
        manifest = Manifest(
            name=name,
            version=version,
            kind=Kind.CLASSIFIER if classifier else Kind.REGRESSOR,
            inputs=columns.inputs,
            outputs=Outputs(probabilities="probabilities") if classifier else Outputs(value="variable"),
            labels=tuple(labels or ()),
            files={MODEL: sha256(graph).hexdigest()},
            thresholds=_thresholds(answered if real else None, decision),
            reference_confidence=_reference(answered) if real else (),
            features=described(columns.sample) if rows is not None else {},
            calibration=calibration,
            performance=None if true is None else Performance(measured=_measured(answered, true, calibrate)),
            golden=_golden(columns, expected, list(labels or [VALUE])),
            licence=licence,
            made_by=made_by or f"models.convert: {who}, {_release(estimator)}",
        )
    path = into or Path(tempfile.mkdtemp(prefix="homunculus-converted-")) / version  # mkdtemp's own is nobody else's
    path.mkdir(parents=True)
    try:
        (path / MODEL).write_bytes(graph)
        manifest.write(path)
        folder = ModelFolder.open(path, name, version)
        _prove(folder, columns, expected, who)
    except BaseException:
        shutil.rmtree(path if into else path.parent)
        raise
    return folder


@contextmanager
def _in_words(who: str) -> Iterator[None]:
    """What is said of the version that no manifest can say becomes a ConversionError."""
    try:
        yield
    except ValidationError as error:
        raise ConversionError(f"{who} can't be converted: {mistakes(error)}") from None


def _is_classifier(estimator: Any, who: str) -> bool:
    try:
        from sklearn.base import is_classifier, is_regressor
    except ImportError:
        raise ConversionError(f"{who} can't be converted: {NEEDED}") from None
    if not hasattr(estimator, "predict") or not hasattr(estimator, "get_params"):
        raise ConversionError(
            f"{who} can't be converted: it is no estimator of scikit-learn's kind. Boosters are trained through "
            "LGBMClassifier, LGBMRegressor, XGBClassifier or XGBRegressor"
        )
    if is_classifier(estimator) and not hasattr(estimator, "predict_proba"):
        raise ConversionError(
            f"{who} can't be converted: it has no predict_proba. Wrap it in CalibratedClassifierCV, or train it with "
            "probability=True where it has that"
        )
    if not is_classifier(estimator) and not is_regressor(estimator):
        raise ConversionError(f"{who} can't be converted: it is neither a classifier nor a regressor")
    return bool(is_classifier(estimator))


def _expected(estimator: Any, columns: Columns, classifier: bool, who: str) -> Floats:
    """(n, C) probabilities, or (n, 1) values, as the estimator computes them."""
    try:
        found = estimator.predict_proba(columns.rows) if classifier else estimator.predict(columns.rows)
    except Exception as error:
        raise ConversionError(f"{who} can't compute the rows: {error!r}") from error
    scores: Floats = np.asarray(found, np.float64)
    if scores.ndim > 2 or (not classifier and scores.size != len(scores)):
        raise ConversionError(f"{who} can't be converted: it has several outputs, {scores.shape[1:]}")
    if classifier and scores.shape[1] < 2:
        raise ConversionError(f"{who} can't be converted: it has learnt of one class alone")
    if not np.isfinite(scores).all():
        row = int(np.flatnonzero(~np.isfinite(scores).reshape(len(scores), -1).all(axis=1))[0])
        raise ConversionError(f"{who} can't be converted: of row {row} it makes {scores[row].tolist()}")
    return scores if classifier else scores.reshape(-1, 1)


def _thresholds(expected: Floats | None, decision: Decision | None) -> Thresholds:
    if expected is None:
        return Thresholds(decision=decision)
    low = float(np.quantile(confidence(expected), DOUBTFUL))
    return Thresholds(low_confidence=math.floor(low * 1e4) / 1e4, decision=decision)  # up, and ties would be doubtful


def _reference(expected: Floats) -> tuple[float, ...]:
    levels = (np.arange(QUANTILES) + 0.5) / QUANTILES
    return tuple(round(float(c), 4) for c in np.quantile(confidence(expected), levels))


def _truth(estimator: Any, truth: Any, expected: Floats, classifier: bool) -> NDArray[Any]:
    """(n,): the column of what was true, or the true value."""
    true = np.asarray(truth)
    if true.shape != (len(expected),):
        raise ConversionError(f"truth has shape {true.shape} for {len(expected)} rows")
    if not classifier:
        return true.astype(np.float64)
    places = {label: place for place, label in enumerate(np.asarray(estimator.classes_).tolist())}
    if odd := sorted(map(str, set(true.tolist()) - places.keys())):
        raise ConversionError(f"truth names {', '.join(odd[:5])}; the classes are {', '.join(map(str, places))}")
    return np.array([places[label] for label in true.tolist()], np.intp)


def _measured(answered: Floats, true: NDArray[Any], calibrate: Method | None) -> Quality | None:
    """How good it is, on the rows that the calibration hasn't seen."""
    part = slice(1 if calibrate else 0, None, 2 if calibrate else 1)
    classifier = true.dtype.kind == "i"
    tally = Tally(answered.shape[1] if classifier else 0)
    sums = tally.empty()
    for row, what in zip(answered[part].tolist(), true[part].tolist(), strict=True):
        outcome = Outcome(0, "", what, tuple(row)) if classifier else Outcome(0, "", 0, tuple(row), what)
        if tally.usable(outcome):
            tally.add(sums, outcome)
    return tally.quality(sums)


def _golden(columns: Columns, expected: Floats, labels: Sequence[str]) -> tuple[Golden, ...]:
    """Rows spread over the scores, with what the estimator says of them: another runtime must not change it."""
    order = np.argsort(expected[:, -1], kind="stable")
    spread = dict.fromkeys(order[np.linspace(0, len(order) - 1, EXAMPLES).astype(int)].tolist())
    examples = ((row, columns.example(row)) for row in spread)
    return tuple(
        Golden(
            inputs=inputs,
            expected=dict(zip(labels, map(float, expected[row]), strict=True)),
            tolerance=_allowed(expected),
        )
        for row, inputs in examples
        if inputs is not None
    )


def _allowed(expected: Floats) -> float:
    return PARITY * max(1.0, float(np.abs(expected).max()))


def _prove(folder: ModelFolder, columns: Columns, expected: Floats, who: str) -> None:
    """Loads the version as a worker does, and compares it with the estimator on every row."""
    with loaded(folder) as runtime:
        got = Scores.of(folder.manifest.uncalibrated, runtime.compute(columns.arrays())).matrix
    off = np.abs(got - expected).max(axis=1)
    odd = ~(off <= _allowed(expected))
    if odd.any():
        row = int(np.argmax(np.where(np.isnan(off), np.inf, off)))
        raise ConversionError(
            f"{who} and its ONNX graph differ in {int(odd.sum()):,} of {len(odd):,} rows, by up to {off[row]:.2g} (row "
            f"{row}: {expected[row].tolist()}, {got[row].tolist()}); {_allowed(expected):g} is allowed. Trees behind a "
            "scaler do that: they split where values lie, and rounding moves those. Leave the scaler out"
        )


def _release(estimator: Any) -> str:
    """The package that trained it, with its version: LightGBM's in a pipeline, if that is the last step."""
    steps = getattr(estimator, "steps", None)
    package = type(steps[-1][1] if steps else estimator).__module__.partition(".")[0]
    version = getattr(__import__(package), "__version__", "")
    return f"{'scikit-learn' if package == 'sklearn' else package} {version}".strip()
