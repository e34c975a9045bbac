"""What a version must prove before it goes live: that it runs at any batch size, and computes its own examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from typing import Any, Final

import numpy as np

from core.errors import GoldenMismatchError, ManifestError
from models.dtype import Dtype
from models.engine import Array, Arrays
from models.manifest import Input, Kind, Manifest, Scalar
from models.scores import Scores

WARM_UP: Final = (1, 8, 64, 512)
"""Batch sizes run before the first event, so that memory is laid out and kernels are chosen."""
SUM_SLACK: Final = 1e-3
"""How far a row of probabilities may be from summing to 1."""

Compute = Callable[[Arrays], Mapping[str, Array]]
Example = Mapping[str, Scalar | None]


def warm_up(manifest: Manifest, compute: Compute, sizes: Sequence[int] = WARM_UP, slack: float = 0.0) -> None:
    """Runs the golden examples' inputs at every batch size; where there are none, defaults (0, "" or false where a
    field is required).

    slack: how far a score may be from the model's own, where this is one of its coarser precisions. Raises
    ManifestError when a run fails, or gives other shapes than the manifest says, or rows that sum to something else
    than 1, as logits do.
    """
    gaps: Example = {field.name: None for _, field in manifest.fields()}
    examples = cycle([example.inputs for example in manifest.golden] or [gaps])
    for rows in sizes:
        try:
            outputs = compute(matrices(manifest, list(islice(examples, rows))))
            scores = Scores.of(manifest.uncalibrated, outputs)
        except Exception as error:
            raise ManifestError(f"{manifest.identity}: a first run of {rows} rows fails: {error}") from error
        if len(scores) != rows:
            raise ManifestError(f"{manifest.identity}: {rows} rows in, {len(scores)} out; it must give a row for each")
        if manifest.kind is Kind.CLASSIFIER:
            _check_sums(manifest, outputs, scores, slack)


def check_golden(manifest: Manifest, compute: Compute, slack: float = 0.0) -> None:
    """Computes the golden examples, all in one batch and each alone.

    slack: added to each tolerance, where this is one of the model's coarser precisions. Raises GoldenMismatchError
    that names the first example that differs, what it expects and what it got.
    """
    if not manifest.golden:
        return
    together = _scored(manifest, compute, [example.inputs for example in manifest.golden])
    for index, example in enumerate(manifest.golden):
        alone = _scored(manifest, compute, [example.inputs])
        tolerance = example.tolerance + slack
        for scores, row, how in ((alone, 0, "alone"), (together, index, "in a batch")):
            got = dict(zip(scores.labels, map(float, scores.matrix[row]), strict=True))
            off = [label for label, p in example.expected.items() if not abs(got[label] - p) <= tolerance]
            if off or row in scores.broken:
                expected = {label: example.expected[label] for label in off or example.expected}
                finite = {label: round(score, 6) for label, score in got.items()}
                raise GoldenMismatchError(
                    f"{manifest.identity}: golden[{index}] {how} expects {expected} within {tolerance:g}, "
                    f"got {finite if row not in scores.broken else 'something not finite'}"
                )


def _scored(manifest: Manifest, compute: Compute, rows: Sequence[Example]) -> Scores:
    try:
        return Scores.of(manifest.uncalibrated, compute(matrices(manifest, rows)))
    except Exception as error:
        raise GoldenMismatchError(f"{manifest.identity}: the golden examples can't be computed: {error}") from error


def matrices(manifest: Manifest, rows: Sequence[Example]) -> dict[str, Array]:
    """ONNX inputs from rows of named values; null takes the default. For checks and tools: the hot path fills
    whole columns."""
    return {name: _matrix(given, rows) for name, given in manifest.inputs.items()}


def _matrix(given: Input, rows: Sequence[Example]) -> Array:
    matrix: Array = np.empty((len(rows), len(given.fields)), given.dtype.numpy)
    for column, field in enumerate(given.fields):
        gap = given.default(column)
        gap = neutral(given.dtype) if gap is None else gap
        matrix[:, column] = [gap if row[field.name] is None else row[field.name] for row in rows]
    return matrix


def neutral(dtype: Dtype) -> Any:
    """What stands for a value that is required and that nobody has given."""
    return {Dtype.STRING: "", Dtype.BOOL: False}.get(dtype, 0)


def _check_sums(manifest: Manifest, outputs: Mapping[str, Array], scores: Scores, slack: float) -> None:
    name = manifest.outputs.probabilities
    sums = scores.matrix.sum(axis=1)
    if len(scores.broken) or not np.allclose(sums, 1.0, rtol=0, atol=SUM_SLACK + slack):
        row = np.asarray(outputs[str(name)])[0].tolist()
        raise ManifestError(f"{manifest.identity}: output {name} gives {row}; probabilities are in [0, 1] and sum to 1")
