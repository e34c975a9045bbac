"""The columns of an estimator's rows: how they become ONNX inputs, and fields of events."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from core.errors import ConversionError
from models.describing import Sample
from models.dtype import Dtype
from models.engine import Array
from models.manifest import Input, InputField, Scalar

MATRIX: Final = "features"
"""The one input of estimators that take a matrix."""
_NUMBERED: Final = re.compile(r"Column_\d+")
"""What LightGBM calls columns that nobody has named."""
SAMPLES: Final = 16
"""Rows that are made up where none are given."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The rows as the estimator takes them, and as the graph will. Make it with Columns.of."""

    fields: tuple[InputField, ...]
    names: tuple[str, ...]
    """Of the columns; the estimator's own, where it knows them by name."""
    dtypes: tuple[Dtype, ...]
    split: bool
    """Whether each column is an input of its own: where types differ, or the estimator picks columns by name."""
    rows: Any
    """(n, columns): a frame or a matrix, in the precision that events will have."""

    @classmethod
    def of(cls, estimator: Any, fields: Sequence[str | InputField] | None, rows: Any) -> Self:
        """fields: by default the rows' or the estimator's column names. rows: a matrix or a data frame; None makes up
        a few of normal noise. Raises ConversionError."""
        known = getattr(rows, "columns", getattr(estimator, "feature_names_in_", None))
        if known is not None and all(_NUMBERED.fullmatch(str(name)) for name in known):
            known = getattr(rows, "columns", None)
        wanted = known if fields is None else fields
        if wanted is None:
            raise ConversionError("name the fields of the columns, in order: neither rows nor estimator have names")
        made = tuple(field if isinstance(field, InputField) else InputField(name=str(field)) for field in wanted)
        names = tuple(map(str, known)) if known is not None else tuple(field.name for field in made)
        if len(names) != len(made):
            raise ConversionError(f"{len(made)} fields for {len(names)} columns: {', '.join(names)}")
        if rows is None:
            noise = np.random.default_rng(0).normal(size=(SAMPLES, len(made))).astype(np.float32)
            noise[0] = 0
            rows = noise if known is None else _frame(noise, names)
        if np.ndim(rows) != 2 or np.shape(rows)[1] != len(made) or not len(rows):
            raise ConversionError(f"rows must be (n, {len(made)}), n > 0; they are {np.shape(rows)}")
        if not hasattr(rows, "iloc"):
            rows = np.asarray(rows)
            text = rows.dtype.kind in "OUS"
            dtypes = (Dtype.STRING if text else Dtype.FLOAT32,) * len(made)
            rows = rows.astype(object if text else np.float32)
            rows = rows if known is None else _frame(rows, names)
            return cls(made, names, dtypes, False, rows)
        apart = [_dtype(rows.iloc[:, place]) for place in range(len(made))]
        split = _by_name(estimator) or 0 < apart.count(Dtype.STRING) < len(apart)
        dtypes = tuple(apart if split or Dtype.STRING in apart else [Dtype.FLOAT32] * len(apart))
        return cls(made, names, dtypes, split, _rounded(rows, dtypes))

    @property
    def inputs(self) -> dict[str, Input]:
        """As the manifest has them."""
        if not self.split:
            return {MATRIX: Input(dtype=self.dtypes[0], fields=self.fields)}
        each = zip(self.names, self.dtypes, self.fields, strict=True)
        return {name: Input(dtype=dtype, fields=(field,)) for name, dtype, field in each}

    def arrays(self) -> dict[str, Array]:
        """The rows as the graph takes them."""
        if not self.split:
            return {MATRIX: np.asarray(self.rows, self.dtypes[0].numpy)}
        each = zip(self.names, self.dtypes, strict=True)
        return {
            name: np.asarray(self.rows.iloc[:, place], dtype.numpy).reshape(-1, 1)
            for place, (name, dtype) in enumerate(each)
        }

    @property
    def sample(self) -> Sample:
        """Field -> its values."""
        columns = (
            self.rows.iloc[:, j] if hasattr(self.rows, "iloc") else self.rows[:, j] for j in range(len(self.fields))
        )
        return {field.name: column.tolist() for field, column in zip(self.fields, columns, strict=True)}

    def example(self, row: int) -> dict[str, Scalar | None] | None:
        """One row as a golden example has it; None where a gap is in it that no default fills."""
        values = self.rows.iloc[row].tolist() if hasattr(self.rows, "iloc") else self.rows[row].tolist()
        example: dict[str, Scalar | None] = {}
        for field, dtype, boxed in zip(self.fields, self.dtypes, values, strict=True):
            value = boxed.item() if isinstance(boxed, np.generic) else boxed
            gap = _is_gap(value)
            if gap and str(field.default).lower() != "nan":
                return None
            example[field.name] = None if gap else str(value) if dtype is Dtype.STRING else value
        return example


def rows_of(sample: Sample, fields: Sequence[str], estimator: Any) -> Any:
    """A data frame of the columns that an estimator takes, in its order. fields: empty where it knows them by name.

    Raises ConversionError that names what the sample lacks.
    """
    import pandas as pd

    wanted = list(fields) or [str(name) for name in getattr(estimator, "feature_names_in_", sample)]
    if lacking := [name for name in wanted if name not in sample]:
        raise ConversionError(f"the reference has no column {', '.join(lacking)}")
    rows = pd.DataFrame({name: sample[name] for name in wanted})
    names = getattr(estimator, "feature_names_in_", None)
    return rows if names is None else rows.set_axis(list(map(str, names)), axis=1)


def _by_name(estimator: Any) -> bool:
    """Whether it, or the first step of the pipeline that it is, picks columns."""
    steps = getattr(estimator, "steps", None)
    first = steps[0][1] if steps else estimator
    return type(first).__name__ == "ColumnTransformer"


def _dtype(column: Any) -> Dtype:
    from pandas.api import types

    if types.is_bool_dtype(column) or types.is_integer_dtype(column):
        return Dtype.INT64
    return Dtype.FLOAT32 if types.is_float_dtype(column) else Dtype.STRING


def _is_gap(value: object) -> bool:
    return value is None or repr(value) == "<NA>" or (isinstance(value, float) and math.isnan(value))


def _rounded(rows: Any, dtypes: Sequence[Dtype]) -> Any:
    """A copy with the values that the model will see: an event's numbers become float32 on their way."""
    types = {name: dtype.numpy for name, dtype in zip(rows.columns, dtypes, strict=True) if dtype is not Dtype.STRING}
    return rows.astype(types)


def _frame(matrix: Array, names: Sequence[str]) -> Any:
    import pandas as pd

    return pd.DataFrame(matrix, columns=list(names))
