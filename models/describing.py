"""References out of samples: what a manifest says of the features that a model was made with."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from core.errors import ManifestError
from models.dtype import Dtype
from models.manifest import Input
from models.reference import LONGEST, CategoryReference, FeatureReference, NumberReference, spelt

QUANTILES: Final = 64
"""Knots of a number that has more values: between two of them lie 1.6 % of the sample."""
NAMED: Final = 50
"""Categories that are kept by name, the most frequent ones."""

Sample = Mapping[str, Sequence[Any]]
"""Feature -> its values, row by row: numbers, texts or truths; None and NaN where one is missing."""


def described(sample: Sample, categories: Collection[str] = ()) -> dict[str, FeatureReference]:
    """The manifest's `features` for a sample: best one that the model wasn't trained on, as new as can be.

    categories: features whose numbers only name something; texts and truths always do. Columns that are missing
    throughout are left out. Raises ManifestError for columns of several lengths, and for texts among numbers.
    """
    columns = {name: _plain(column) for name, column in sample.items()}
    if odd := sorted(set(categories) - columns.keys()):
        raise ManifestError(f"the sample has no column {', '.join(odd)}")
    if len({len(column) for column in columns.values()}) > 1:
        raise ManifestError(f"the sample's columns differ in length: { {n: len(c) for n, c in columns.items()} }")
    found = {name: _described(name, column, name in categories) for name, column in columns.items()}
    return {name: reference for name, reference in found.items() if reference is not None}


def described_inputs(sample: Sample, inputs: Mapping[str, Input], where: str) -> dict[str, FeatureReference]:
    """Of the sample's columns those that fill an input: others are labels, ids and what else a file has. What fills a
    string input is a category. Raises ManifestError where none does."""
    types = {field.name: given.dtype for given in inputs.values() for field in given.fields}
    theirs = {name: column for name, column in sample.items() if name in types}
    if not theirs:
        raise ManifestError(f"{where}: no column of the reference fills an input; the fields are {', '.join(types)}")
    return described(theirs, [name for name in theirs if types[name] is Dtype.STRING])


def sample_of(path: Path) -> dict[str, list[Any]]:
    """A CSV file's columns, by its first line: a column is of numbers where each of its cells is one or empty, and of
    texts else. Raises ManifestError."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ManifestError(f"{path.name} can't be read as CSV: {error}") from error
    if len(rows) < 2 or len(set(rows[0])) < len(rows[0]):
        raise ManifestError(f"{path.name} needs a line of names, each once, and a row at least")
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(rows[0]):
            raise ManifestError(f"{path.name}, line {number}: {len(row)} cells for {len(rows[0])} columns")
    return {name: _typed(list(column)) for name, *column in zip(*rows, strict=True)}


def _typed(cells: list[str]) -> list[Any]:
    try:
        return [float(cell) if cell.strip() else None for cell in cells]
    except ValueError:
        truths = {"true": True, "false": False}
        if all(cell.lower() in truths or not cell for cell in cells):
            return [truths.get(cell.lower()) for cell in cells]
        return [cell or None for cell in cells]


def _plain(column: Sequence[Any]) -> list[Any]:
    """Python's own values, None for what is missing."""
    values = column.tolist() if hasattr(column, "tolist") else list(column)
    return [None if _missing(value) else value for value in values]


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value)) or repr(value) in ("<NA>", "NaT")


def _described(name: str, column: list[Any], category: bool) -> FeatureReference | None:
    there = [value for value in column if value is not None]
    if not there:
        return None
    missing = round(1 - len(there) / len(column), 9)
    texts = sum(isinstance(value, str) for value in there)
    if 0 < texts < len(there) and not category:
        raise ManifestError(f"{name} has texts and numbers in it; name it among the categories")
    if category or texts or all(isinstance(value, bool) for value in there):
        return _category([spelt(value) for value in there], len(column), missing)
    return _number(np.array(there, np.float32), len(column), missing)


def _number(values: np.ndarray[Any, np.dtype[np.float32]], rows: int, missing: float) -> NumberReference:
    values = np.sort(values[np.isfinite(values)])
    knots = np.unique(values)
    if len(knots) > QUANTILES:
        places = np.linspace(0, len(values) - 1, QUANTILES).round().astype(int)
        knots = np.unique(values[places])
    up_to = np.searchsorted(values, knots, side="right") / len(values)
    return NumberReference(
        rows=rows,
        values=tuple(float(str(knot)) for knot in knots),  # the shortest that is the same float32
        up_to=tuple(round(share, 9) for share in up_to.tolist()),
        missing=missing,
    )


def _category(values: list[str], rows: int, missing: float) -> CategoryReference:
    short = Counter(value for value in values if len(value) <= LONGEST)
    counts = dict(sorted(short.items(), key=lambda item: (-item[1], item[0]))[:NAMED])
    return CategoryReference(
        rows=rows,
        shares={value: round(count / len(values), 9) for value, count in counts.items()},
        rest=round(1 - sum(counts.values()) / len(values), 9),
        missing=missing,
    )
