"""What a model says of a batch: one row an event, and all that predictions are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from models.confidence import confidence, interval_confidence
from models.engine import Array, Arrays
from models.manifest import Kind, Manifest

VALUE: Final = "value"
"""The one label of a regressor."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The answers to n events, in their order."""

    labels: tuple[str, ...]
    """Names of the matrix's columns; ("value",) for regressors."""
    matrix: NDArray[np.float32]
    """(n, len(labels)): a classifier's probabilities, or a regressor's values."""
    best: NDArray[np.intp]
    """(n,): column of the largest score."""
    confidence: NDArray[np.float32] | None
    """(n,) in [0, 1], as models/confidence.py defines it; None for regressors without an interval."""
    low_confidence: NDArray[np.bool_]
    """(n,): confidence below the manifest's threshold; False where there is none."""
    decision: NDArray[np.bool_] | None
    """(n,): score of the decision's label above its threshold; None where the manifest has none."""
    broken: NDArray[np.intp]
    """Rows for which the model gave something not finite, nearly always empty: score 0, no confidence, and to be
    treated as records that can't be scored."""

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
        broken = _not_finite(matrix, interval)
        if len(broken):
            matrix = matrix.copy()
            matrix[broken] = 0.0
            if interval is not None:
                interval = interval.copy()
                interval[broken] = 0.0
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


def _not_finite(matrix: Array, interval: Array | None) -> NDArray[np.intp]:
    """Rows with NaN or infinity; one sum tells nearly always that there are none."""
    if np.isfinite(matrix.sum()) and (interval is None or np.isfinite(interval.sum())):
        return np.empty(0, np.intp)
    fine = np.isfinite(matrix).all(axis=1)
    if interval is not None:
        fine &= np.isfinite(interval).all(axis=1)
    return np.flatnonzero(~fine)


def _decision(manifest: Manifest, matrix: NDArray[np.float32]) -> NDArray[np.bool_] | None:
    decision = manifest.thresholds.decision
    if decision is None:
        return None
    column = 0 if decision.label is None else manifest.labels.index(decision.label)
    above: NDArray[np.bool_] = matrix[:, column] > np.float32(decision.above)
    return above
