"""What a model says of a batch: one row an event, and all that predictions are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from models.confidence import confidence, interval_confidence
from models.engine import Array, Arrays
from models.manifest import Kind, Manifest

VALUE: Final = "value"
"""The one label of a regressor."""
_SLACK: Final = 1e-3
"""How far rounding may carry a probability out of [0, 1]."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The answers to n events, in their order."""

    labels: tuple[str, ...]
    """Names of the matrix's columns; ("value",) for regressors."""
    matrix: NDArray[np.float32]
    """(n, len(labels)): a classifier's probabilities, calibrated where the manifest says how, or a regressor's values.
    """
    best: NDArray[np.intp]
    """(n,): column of the largest score."""
    confidence: NDArray[np.float32] | None
    """(n,) in [0, 1], as models/confidence.py defines it; None for regressors without an interval."""
    low_confidence: NDArray[np.bool_]
    """(n,): confidence below the manifest's threshold; False where there is none."""
    decision: NDArray[np.bool_] | None
    """(n,): score of the decision's label above its threshold; None where the manifest has none."""
    broken: NDArray[np.intp]
    """Rows for which the model gave something not finite, or no probability; nearly always empty. Their scores and
    confidence are 0, and they are to be treated as records that can't be scored."""

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """The matrix, as classifiers call it."""
        return self.matrix

    def __len__(self) -> int:
        return len(self.matrix)

    @classmethod
    def of(cls, manifest: Manifest, outputs: Arrays) -> Self:
        """Reads a run's outputs as the manifest says. Raises ValueError when they have other shapes than it needs."""
        classifier = manifest.kind is Kind.CLASSIFIER
        matrix = _probabilities(manifest, outputs) if classifier else _values(manifest, outputs)
        bounds = manifest.outputs.interval
        interval = outputs[bounds.output] if bounds else None
        broken = _broken(matrix, interval, (-_SLACK, 1 + _SLACK) if classifier else (-np.inf, np.inf))
        if len(broken):
            matrix = matrix.copy()
            matrix[broken] = 0.0
            if interval is not None:
                interval = interval.copy()
                interval[broken] = 0.0
        if manifest.calibration is not None:
            matrix = manifest.calibration.applied(matrix)
            matrix[broken] = 0.0
        sure = confidence(matrix) if classifier else None
        if bounds and interval is not None:
            sure = interval_confidence(interval, bounds.widest)
        if sure is not None and len(broken):
            sure[broken] = 0.0
        limit = manifest.thresholds.low_confidence
        low = np.zeros(len(matrix), np.bool_) if sure is None else sure < np.float32(limit)
        return cls(
            labels=manifest.labels if classifier else (VALUE,),
            matrix=matrix,
            best=matrix.argmax(axis=1),
            confidence=sure,
            low_confidence=low,
            decision=_decision(manifest, matrix),
            broken=broken,
        )


def _probabilities(manifest: Manifest, outputs: Arrays) -> NDArray[np.float32]:
    """(n, C) float32. One column for two labels is the probability of the second."""
    name, labels = manifest.outputs.probabilities, len(manifest.labels)
    given: NDArray[np.float32] = np.asarray(outputs[str(name)], dtype=np.float32)
    if labels == 2 and (given.ndim == 1 or given.shape[1:] == (1,)):
        second = given.reshape(-1)
        return np.stack((1.0 - second, second), axis=1)
    if given.shape[1:] != (labels,):
        raise ValueError(f"output {name} has shape {given.shape}, but the manifest names {labels} labels")
    return given


def _values(manifest: Manifest, outputs: Arrays) -> NDArray[np.float32]:
    name, bounds = manifest.outputs.value, manifest.outputs.interval
    given: NDArray[np.float32] = np.asarray(outputs[str(name)], dtype=np.float32)
    if given.ndim > 2 or given.size != len(given):
        raise ValueError(f"output {name} has shape {given.shape}; a regressor's value is (n,) or (n, 1)")
    if bounds and outputs[bounds.output].shape != (len(given), 2):
        raise ValueError(f"output {bounds.output} has shape {outputs[bounds.output].shape}; an interval is (n, 2)")
    return given.reshape(-1, 1)


def _broken(matrix: Array, interval: Array | None, bounds: tuple[float, float]) -> NDArray[np.intp]:
    """Rows that aren't finite or within the bounds. Two comparisons, false for NaN, tell nearly always that none is."""
    if not len(matrix):
        return np.empty(0, np.intp)
    low, high = float(matrix.min()), float(matrix.max())
    fine = None
    if not (bounds[0] < low and high < bounds[1]):
        fine = ((bounds[0] < matrix) & (matrix < bounds[1])).all(axis=1)
    if interval is not None:
        certain = np.isfinite(interval).all(axis=1)
        fine = certain if fine is None else fine & certain
    return np.empty(0, np.intp) if fine is None else np.flatnonzero(~fine)


def _decision(manifest: Manifest, matrix: NDArray[np.float32]) -> NDArray[np.bool_] | None:
    decision = manifest.thresholds.decision
    if decision is None:
        return None
    column = 0 if decision.label is None else manifest.labels.index(decision.label)
    above: NDArray[np.bool_] = matrix[:, column] > np.float32(decision.above)
    return above
