"""Outputs of a partition's finished prefix, appended to record batches as they come, sent by the commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from aiokafka import TopicPartition

from engine.quota import weigh
from engine.record import Headers

if TYPE_CHECKING:
    from engine.batch import Staged

Builders = dict[TopicPartition, list[Any]]


class Outbox:
    """Open record batches by topic and partition."""

    def __init__(self, new_builder: Callable[[], Any]) -> None:
        self._new_builder = new_builder
        self._builders: Builders = {}
        self.staged = 0
        """Records that were ever staged."""
        self.count = 0
        """Records staged and not yet taken."""
        self.weight = 0
        """Their bytes, about."""

    def __bool__(self) -> bool:
        return bool(self._builders)

    @property
    def targets(self) -> Iterable[TopicPartition]:
        """Where staged outputs go."""
        return self._builders.keys()

    def add(self, staged: Staged) -> None:
        """Appends a slice's outputs."""
        target = TopicPartition(staged.topic, staged.partition)
        builders = self._builders.setdefault(target, [])
        fill(builders, self._new_builder, staged.keys, staged.values, staged.headers)
        self.weight += weigh(staged.values, _itself)
        self.count += len(staged.values)
        self.staged += len(staged.values)

    def take(self) -> Builders:
        """All that is staged; new outputs go into new batches."""
        taken, self._builders, self.count, self.weight = self._builders, {}, 0, 0
        return taken


class Elsewhere:
    """A partition's outputs for other partitions, where its neighbours' go as well: a produce request carries one batch
    a partition, so the commit puts those of all neighbours into one. Eight batches instead were eight requests, each
    after the answer to the one before."""

    def __init__(self) -> None:
        self._staged: list[Staged] = []
        self.count = 0
        """Records staged and not yet taken."""
        self.weight = 0
        """Their bytes, about."""

    @property
    def targets(self) -> set[TopicPartition]:
        """Where staged outputs go."""
        return {TopicPartition(staged.topic, staged.partition) for staged in self._staged}

    def add(self, staged: Staged) -> None:
        """Keeps a slice's outputs."""
        self._staged.append(staged)
        self.weight += weigh(staged.values, _itself)
        self.count += len(staged.values)

    def take(self) -> list[Staged]:
        """All that is staged."""
        taken, self._staged, self.count, self.weight = self._staged, [], 0, 0
        return taken


def _itself(value: bytes | None) -> bytes | None:
    return value


def fill(
    builders: list[Any],
    new_builder: Callable[[], Any],
    keys: Iterable[bytes | None],
    values: Iterable[bytes | None],
    headers: Iterable[Headers],
) -> None:
    """Appends records to the last of these batches, and to new ones behind it where that is full."""
    if not builders:
        builders.append(new_builder())
    batch = builders[-1]
    place, append = batch.record_count(), batch._builder.append  # BatchBuilder's own adds half to the price
    now = int(time.time() * 1e3)
    try:
        for key, value, tags in zip(keys, values, headers, strict=False):
            if append(place, now, key, value, tags) is None:
                batch._relative_offset = place
                batch = new_builder()
                builders.append(batch)
                place, append = 0, batch._builder.append
                append(0, now, key, value, tags)  # a batch takes its first record whatever its size
            place += 1
    finally:
        batch._relative_offset = place
