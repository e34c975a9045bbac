"""Answers -> scores: what detectors need of them, in columns, one record a slice and version."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from agents.plan import Group, Plan
from core.topics import SCORES
from engine.publisher import partition_of
from engine.tracing import output_headers
from models.drift.answers import Scored
from models.manifest import Kind
from models.scores import Scores


class Told:
    """Leaves with the predictions: what detectors have seen is what others can read."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._encode = msgspec.msgpack.Encoder().encode

    def tell(self, plan: Plan) -> None:
        """Stages what a batch was answered. Shadows aren't among it: they leave by another way, some not at all."""
        for group, scores in plan.scored:
            manifest = group.version.manifest
            features = plan.watched(group.version, group.places)
            if manifest.kind is Kind.REGRESSOR and scores.confidence is None and features is None:
                continue
            key = manifest.identity.encode()
            partition = partition_of(key, self._partitions)
            places, columns = _columns(plan, group, scores, features)
            if not len(places):
                continue
            bounds = np.searchsorted(places, [at for _, at in plan.slices]).tolist()
            for (s, at), begin, end in zip(plan.slices, bounds, [*bounds[1:], len(places)], strict=True):
                if begin < end:
                    parts = [b"" if column is None else column[begin:end].tobytes() for column in columns]
                    last = int(places[end - 1]) - at
                    headers = output_headers(s.topic, s.partition, s.records[last : last + 1], s.parents)
                    s.emit(SCORES, [key], [self._encode(Scored(s.partition, *parts))], headers, partition)


def _columns(
    plan: Plan, group: Group, scores: Scores, features: NDArray[np.float32] | None
) -> tuple[NDArray[np.intp], list[NDArray[Any] | None]]:
    """What a version has answered, but for what is of no use: the events' places in the batch, growing, and the columns
    of Scored from the offsets on."""
    n = len(scores)
    places = np.arange(n) if group.places is None else np.asarray(group.places, np.intp)
    offsets = np.array([record.offset for s, _ in plan.slices for record in s.records], "<i8")
    columns = [
        offsets[places],
        plan.ts[places].astype("<i8"),
        scores.best.astype("<u2"),
        scores.matrix[np.arange(n), scores.best].astype("<f4", copy=False),
        None if scores.confidence is None else scores.confidence.astype("<f4", copy=False),
        None if features is None else features.astype("<f4", copy=False),
    ]
    if not len(scores.broken):
        return places, columns
    usable = np.ones(n, np.bool_)
    usable[scores.broken] = False
    return places[usable], [None if column is None else column[usable] for column in columns]
