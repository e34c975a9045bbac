"""One order for answers that come from several partitions: event time, then partition, then offset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from models.drift.answers import Answers

WAIT_MS: Final = 1000
"""How long an answer waits for other partitions, by the times at which the scores were written: a partition that has
been silent for that long holds nobody back."""
MOST_BYTES: Final = 48_000
"""Of answers that wait: beyond them the first ones go on without having been waited for. A commit writes them all."""
_ROW: Final = 46
"""Bytes of one, without its features."""


class Partition(msgspec.Struct, array_like=True, frozen=True):
    """How far the answers of one partition of observations have come."""

    offset: int = -1
    ts: int = -1
    """Event time of its newest, ms since epoch."""
    heard: int = -1
    """When its newest scores were written, ms since epoch."""


class Waiting(msgspec.Struct, array_like=True, frozen=True):
    """Answers that wait, as bytes."""

    partition: bytes = b""
    offset: bytes = b""
    ts: bytes = b""
    best: bytes = b""
    score: bytes = b""
    confidence: bytes = b""
    features: bytes = b""
    order: bytes = b""
    written: bytes = b""


class OrderingState(msgspec.Struct, array_like=True):
    """What survives a restart."""

    partitions: dict[int, Partition] = {}
    began: int = -1
    """When the first scores were written."""
    waiting: Waiting = Waiting()


class Ordering:
    """Merges one version's answers.

    The order is the same however the partitions' scores are interleaved and cut, as long as none is more than WAIT_MS
    or `most` answers behind another. Inside a partition it is that of the offsets: an answer whose event is older than
    the one before takes that one's place in time. Answers that were seen before are left out.
    """

    def __init__(
        self, partitions: int, features: int, state: OrderingState | None = None, topic: str = "observations"
    ) -> None:
        """partitions, topic: of the observations; features: columns of the answers' features."""
        state = state or OrderingState()
        self._count = partitions
        self.most = MOST_BYTES // (_ROW + 4 * features)
        """Answers that may wait."""
        self._partitions = dict(state.partitions)
        self._began = state.began
        self._newest = max([state.began, *(one.heard for one in self._partitions.values())])
        self._waiting: Answers | None = None
        self._came: list[tuple[Answers, NDArray[np.int64], NDArray[np.int64]]] = []
        """Since the last turn: the answers, what they are ordered by, and when they were written."""
        self._order = np.frombuffer(state.waiting.order, "<i8")
        self._written = np.frombuffer(state.waiting.written, "<i8")
        if len(self._order):
            self._waiting = _unpacked(state.waiting, features, topic)

    @property
    def state(self) -> OrderingState:
        """As of now."""
        waiting = Waiting() if self._waiting is None else _packed(self._waiting, self._order, self._written)
        return OrderingState(dict(self._partitions), self._began, waiting)

    @property
    def waiting(self) -> int:
        """Answers that wait."""
        return len(self._order)

    def merge(self, answers: Answers, written: int) -> Answers | None:
        """add() and turn()."""
        self.add(answers, written)
        return self.turn()

    def add(self, answers: Answers, written: int) -> None:
        """Takes some answers of one partition; written: when their record was, ms since epoch."""
        if not len(answers):
            return
        number = int(answers.partition[0])
        of = self._partitions.get(number, Partition())
        if of.offset >= 0:
            # By both: a topic that was made anew begins at offset 0 again, with newer events.
            answers = answers.take((answers.offset > of.offset) | (answers.ts > of.ts))
            if not len(answers):
                return
        order = np.maximum.accumulate(np.maximum(answers.ts, of.ts))
        self._partitions[number] = Partition(int(answers.offset[-1]), int(order[-1]), written)
        self._came.append((answers, order, np.full(len(answers), written, np.int64)))
        self._began = written if self._began < 0 else self._began
        self._newest = max(self._newest, written)

    def add_all(self, answers: Answers, counts: Sequence[int], written: Sequence[int]) -> None:
        """As add() with one record after the other. counts: answers of each, one at least; written: when each was."""
        times = np.repeat(np.array(written, np.int64), counts)
        begins = np.cumsum([0, *counts[:-1]])
        order = np.empty(len(answers), np.int64)
        partitions = {}
        for number in dict.fromkeys(answers.partition[begins].tolist()):
            where = np.flatnonzero(answers.partition == number)
            of = self._partitions.get(number, Partition())
            offsets = answers.offset[where]
            if offsets[0] <= of.offset or (offsets[1:] <= offsets[:-1]).any():
                # Some were seen before: each record says what is new of the next.
                for begin, count, at in zip(begins.tolist(), counts, written, strict=True):
                    self.add(answers.take(slice(begin, begin + count)), at)
                return
            order[where] = np.maximum.accumulate(np.maximum(answers.ts[where], of.ts))
            last = where[-1]
            partitions[number] = Partition(int(offsets[-1]), int(order[last]), int(times[last]))
        self._partitions.update(partitions)
        self._came.append((answers, order, times))
        self._began = written[0] if self._began < 0 else self._began
        self._newest = max(self._newest, *written)

    def flush(self) -> Answers | None:
        """Those that wait, in order, without being waited for."""
        waiting, self._waiting = self._waiting, None
        self._order, self._written = self._order[:0], self._written[:0]
        return waiting

    def turn(self) -> Answers | None:
        """Those whose turn has come, in order; None where there are none. Sorting costs: call it for many at once."""
        if not self._came:
            return None
        came, self._came = self._came, []
        answers = Answers.joined([part for part, _, _ in came]) if len(came) > 1 else came[0][0]
        order, written = (np.concatenate([part[i] for part in came]) for i in (1, 2))
        heard = [one for one in self._partitions.values() if one.heard > self._newest - WAIT_MS]
        all_heard = len(self._partitions) >= self._count or self._began <= self._newest - WAIT_MS
        if self._waiting is None and all_heard and len(heard) == 1:
            return answers
        if self._waiting is not None:
            answers = Answers.joined([self._waiting, answers])
            order, written = np.concatenate([self._order, order]), np.concatenate([self._written, written])
        if all_heard and len(heard) == 1:
            bound = np.iinfo(np.int64).max
        else:
            bound = min(one.ts for one in heard) if all_heard else -1
        by = np.lexsort((answers.offset, answers.partition, order))
        answers, order, written = answers.take(by), order[by], written[by]
        ready = int(np.searchsorted(order, bound, "left"))
        overdue = np.flatnonzero(written <= self._newest - WAIT_MS)
        if len(overdue):
            ready = max(ready, int(overdue[-1]) + 1)
        ready = max(ready, len(order) - self.most)
        self._waiting = answers.take(slice(ready, None)) if ready < len(order) else None
        self._order, self._written = order[ready:], written[ready:]
        return answers.take(slice(0, ready)) if ready else None


def _packed(answers: Answers, order: NDArray[np.int64], written: NDArray[np.int64]) -> Waiting:
    return Waiting(
        answers.partition.astype("<i4").tobytes(),
        answers.offset.astype("<i8").tobytes(),
        answers.ts.astype("<i8").tobytes(),
        answers.best.astype("<u2").tobytes(),
        answers.score.astype("<f4").tobytes(),
        b"" if answers.confidence is None else answers.confidence.astype("<f4").tobytes(),
        b"" if answers.features is None else answers.features.astype("<f4").tobytes(),
        order.astype("<i8").tobytes(),
        written.astype("<i8").tobytes(),
    )


def _unpacked(waiting: Waiting, features: int, topic: str) -> Answers:
    return Answers(
        np.frombuffer(waiting.partition, "<i4"),
        np.frombuffer(waiting.offset, "<i8"),
        np.frombuffer(waiting.ts, "<i8"),
        np.frombuffer(waiting.best, "<u2"),
        np.frombuffer(waiting.score, "<f4"),
        np.frombuffer(waiting.confidence, "<f4") if waiting.confidence else None,
        np.frombuffer(waiting.features, "<f4").reshape(-1, features) if waiting.features else None,
        topic,
    )
