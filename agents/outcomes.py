"""What labels say of a version -> scores, for its detectors; and counted on this worker, for its comparison."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from core.topics import SCORES
from engine.batch import Slice
from engine.engine import Engine
from engine.publisher import partition_of
from engine.tracing import output_headers
from models.drift.outcomes import Outcomes
from models.joining import Judged
from models.version import LiveVersion

LARGEST: Final = 128 << 10
"""Bytes of one record, about: a version with a thousand labels has outcomes of 9 KB."""


class Led(NamedTuple):
    """What one record of a slice has led to."""

    at: int
    """Its place in the slice."""
    judged: tuple[Judged, ...]


class Teller:
    """One a worker and agent."""

    def __init__(self, engine: Engine, topic: str) -> None:
        """topic: of the records that lead to outcomes, as core/topics.py has it."""
        self._engine = engine
        self._topic = topic
        self._encode = msgspec.msgpack.Encoder().encode

    def tell(self, s: Slice[Any], led: list[Led]) -> None:
        """Stages what a slice has led to, one record a version, and counts it. led: in the order of the slice."""
        if not led:
            return
        by: dict[str, list[tuple[int, Judged]]] = {}
        live = {(one.manifest.name, one.version): one for one in self._engine.models.versions()}
        for at, judged in led:
            for one in judged:
                by.setdefault(one.asked.identity, []).append((at, one))
                _count(live.get((one.asked.model, one.asked.version)), one)
        for identity, theirs in by.items():
            key = identity.encode()
            partition = partition_of(key, self._engine.settings.partitions)
            for part in _parts(theirs):
                last = part[-1][0]
                offsets = tuple(s.records[at].offset for at, _ in part)
                outcomes = tuple(one.outcome for _, one in part)
                value = self._encode(Outcomes(s.partition, offsets[-1], outcomes, offsets, self._topic))
                headers = output_headers(s.topic, s.partition, s.records[last : last + 1], s.parents)
                s.emit(SCORES, [key], [value], headers, partition)


def _count(version: LiveVersion | None, one: Judged) -> None:
    """What was answered in another role says nothing of how the version does in this one."""
    if version is not None and version.course.stage.value == one.asked.role:
        version.labelled.add(one.outcome.weight, one.right, one.loss)


def _parts(outcomes: list[tuple[int, Judged]]) -> Iterator[list[tuple[int, Judged]]]:
    """Pieces of a size; what one record has led to stays together."""
    part: list[tuple[int, Judged]] = []
    size = 0
    for at, one in outcomes:
        if size > LARGEST and part[-1][0] != at:
            yield part
            part, size = [], 0
        part.append((at, one))
        size += 80 + 9 * len(one.outcome.scores)
    if part:
        yield part
