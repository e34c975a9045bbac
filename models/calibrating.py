"""Calibrations out of probabilities and what was true: fitted where models are made, on rows they didn't learn from."""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from core.errors import UsageError
from models.calibration import KNOTS, Isotonic, Temperature

Floats = NDArray[np.floating[Any]]
Method = Literal["temperature", "isotonic"]

_TINY: Final = float(np.finfo(np.float32).tiny)
_HALVINGS: Final = 60


def fitted(method: Method, probabilities: Floats, truth: ArrayLike) -> Temperature | Isotonic:
    """As temperature() or isotonic() does it."""
    return temperature(probabilities, truth) if method == "temperature" else isotonic(probabilities, truth)


def temperature(probabilities: Floats, truth: ArrayLike) -> Temperature:
    """The T that makes the log loss smallest.

    probabilities: (n, C), C >= 2; truth: (n,), each the column of what was true. The loss is convex in 1/T, so the
    place where its slope is 0 is found by halving. T is bounded by .01 and 100, where labels can be told without any
    error, or the probabilities say nothing. Raises UsageError for other shapes and for what isn't finite.
    """
    p, true = _checked(probabilities, truth)
    logs = np.log(np.maximum(p, _TINY))
    logs -= logs.max(axis=1, keepdims=True)
    told = logs[np.arange(len(true)), true]
    low, high = 0.01, 100.0  # of 1/T
    for _ in range(_HALVINGS):
        middle = float(np.sqrt(low * high))
        powers = np.exp(middle * logs)
        slope = float(((powers * logs).sum(axis=1) / powers.sum(axis=1) - told).mean())
        low, high = (low, middle) if slope > 0 else (middle, high)
    return Temperature(temperature=float(f"{1 / np.sqrt(low * high):.6g}"))


def isotonic(probabilities: Floats, truth: ArrayLike) -> Isotonic:
    """The growing function from the second label's probability to how often it was true: least squares, by pooling
    adjacent violators.

    probabilities: (n, 2) or (n,), the second label's; truth: (n,) 0 or 1. What it says stays off 0 and 1 by 1/(n + 2):
    n rows don't prove a never. Raises UsageError for other shapes and for what isn't finite.
    """
    p, true = _checked(probabilities, truth)
    if p.shape[1] != 2:
        raise UsageError(f"an isotonic calibration is for two labels; the probabilities are {p.shape}")
    given, places = np.unique(p[:, 1], return_inverse=True)
    weights = np.bincount(places).astype(float)
    blocks = _pooled(np.bincount(places, true) / weights, weights)
    off = 1 / (len(true) + 2)
    knots: dict[float, float] = {}
    for first, last, mean in blocks:
        meant = min(max(mean, off), 1 - off)
        knots[float(given[first])] = knots[float(given[last])] = meant
    kept = np.unique(np.linspace(0, len(knots) - 1, KNOTS).round().astype(int)) if len(knots) > KNOTS else slice(None)
    return Isotonic(
        given=tuple(np.array(list(knots))[kept].tolist()), meant=tuple(np.array(list(knots.values()))[kept].tolist())
    )


def _pooled(values: Floats, weights: Floats) -> list[tuple[int, int, float]]:
    """Blocks of neighbours as (first, last, weighted mean), whose means grow."""
    blocks: list[tuple[int, int, float, float]] = []
    for place, (value, weight) in enumerate(zip(values.tolist(), weights.tolist(), strict=True)):
        first, mean, heavy = place, value, weight
        while blocks and blocks[-1][2] >= mean:
            first, _, before, count = blocks.pop()
            mean = (before * count + mean * heavy) / (count + heavy)
            heavy += count
        blocks.append((first, place, mean, heavy))
    return [(first, last, mean) for first, last, mean, _ in blocks]


def _checked(probabilities: Floats, truth: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    p = np.asarray(probabilities, np.float64)
    if p.ndim == 1:
        p = np.stack((1 - p, p), axis=1)
    true = np.asarray(truth)
    if p.ndim != 2 or p.shape[1] < 2 or true.shape != (len(p),) or not len(p):
        raise UsageError(f"probabilities are (n, C) and truth is (n,), n > 0; they are {p.shape} and {true.shape}")
    if not np.isfinite(p).all():
        raise UsageError("a probability is not finite")
    columns = true.astype(np.intp)
    if (columns != true).any() or columns.min() < 0 or columns.max() >= p.shape[1]:
        raise UsageError(f"truth is a column of the probabilities, 0 to {p.shape[1] - 1}")
    return p, columns
