"""What the models see of a purchase: computed here for training by the fold that computes it in the worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from core.events import Observation
from examples.purchases.labels import HORIZON_MS
from models.features import RawFeature
from models.manifest import InputField
from tables.aggregates import Aggregates

NEVER_S: Final = HORIZON_MS / 1e3
"""Seconds that stand for "there was no purchase before": as long as the question looks ahead. With 0, a first
purchase would look like the second of two on one day, and the AUC falls by .03."""

FIELDS: Final = (
    InputField(name="quantity"),
    InputField(name="session.count"),
    InputField(name="session.seconds_since_first"),
    InputField(name="session.seconds_since_last", default=NEVER_S),
    InputField(name="session.mean_gap", default=NEVER_S),
    InputField(name="session.mean.amount"),
    InputField(name="session.decayed_mean.amount@30d"),
    InputField(name="session.zscore.amount"),
)
"""The columns of the models' one input, in order."""

BATCH: Final = 4096


def running(
    observations: Sequence[Observation], aggregates: Aggregates, batches: Sequence[int] | None = None
) -> NDArray[np.float64]:
    """Each event's session features, (n, len(aggregates.features)); NaN where there is no value yet.

    batches: sizes of the batches they are folded in, which sum to n; by default BATCH each.
    """
    numbers: dict[str, int] = {}
    rows = np.array([numbers.setdefault(each.session, len(numbers)) for each in observations], np.intp)
    ts = np.array([each.ts for each in observations], np.float64)
    values = np.array([[raw(each, name) for name in aggregates.fields] for each in observations], np.float64)
    values = values.reshape(len(observations), len(aggregates.fields))
    state = np.tile(aggregates.empty, (len(numbers), 1))
    seen, start = np.empty((len(observations), len(aggregates.features))), 0
    for size in batches or [BATCH] * -(-len(observations) // BATCH):
        part = slice(start, start + size)
        seen[part] = aggregates.fold(state, rows[part], ts[part], values[part]).features
        start += size
    return seen


def matrix(observations: Sequence[Observation]) -> NDArray[np.float32]:
    """The models' input, (n, len(FIELDS)), gaps filled with the fields' defaults."""
    aggregates = Aggregates(field.name for field in FIELDS if not isinstance(field.feature, RawFeature))
    seen = running(observations, aggregates)
    columns = np.empty((len(observations), len(FIELDS)), np.float32)
    for place, field in enumerate(FIELDS):
        if isinstance(field.feature, RawFeature):
            columns[:, place] = [raw(each, field.name) for each in observations]
        else:
            column = seen[:, aggregates.features.index(field.name)]
            columns[:, place] = np.where(np.isnan(column), float(field.default or 0.0), column)
    return columns


def raw(observation: Observation, field: str) -> float:
    """A raw feature as a number; NaN where it is missing or null."""
    value = observation.features.get(field)
    return float("nan") if value is None else float(value)
