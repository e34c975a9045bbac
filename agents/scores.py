"""Answers -> scores: what detectors need of them, in columns, one record a slice and version."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from agents.plan import Group, Plan
from core.events import Observation
from core.topics import SCORES
from engine.batch import Slice
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
            usable = np.ones(len(scores), np.bool_)
            usable[scores.broken] = False
            for s, at in plan.slices:
                rows, places = _of_slice(group, at, at + len(s.events), usable)
                if len(rows):
                    value = self._encode(_scored(s, scores, features, plan.ts[places], rows, places - at))
                    last = int(places[-1]) - at
                    headers = output_headers(s.topic, s.partition, s.records[last : last + 1], s.parents)
                    s.emit(SCORES, [key], [value], headers, partition)


def _of_slice(
    group: Group, first: int, end: int, usable: NDArray[np.bool_]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows of a version's scores that belong to a slice, and the places of their events in the batch."""
    if group.places is None:
        rows = np.arange(first, end)
        places = rows
    else:
        all_places = np.asarray(group.places, np.intp)
        rows = np.arange(*np.searchsorted(all_places, (first, end)))
        places = all_places[rows]
    good = usable[rows]
    return (rows, places) if good.all() else (rows[good], places[good])


def _scored(
    s: Slice[Observation],
    scores: Scores,
    features: NDArray[np.float32] | None,
    ts: NDArray[np.float64],
    rows: NDArray[np.intp],
    at: NDArray[np.intp],
) -> Scored:
    records = s.records
    offsets = np.fromiter((records[i].offset for i in at.tolist()), "<i8", len(at))
    best = scores.best[rows]
    return Scored(
        s.partition,
        offsets.tobytes(),
        ts.astype("<i8").tobytes(),
        best.astype("<u2").tobytes(),
        scores.matrix[rows, best].astype("<f4", copy=False).tobytes(),
        b"" if scores.confidence is None else scores.confidence[rows].astype("<f4", copy=False).tobytes(),
        b"" if features is None else features[rows].astype("<f4", copy=False).tobytes(),
    )
