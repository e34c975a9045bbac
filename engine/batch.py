"""What an agent sees: a batch of events, made of one slice a partition; a slice finishes as a whole."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from core.erasure import pseudonym
from core.errors import OutputTooLargeError, TaskError, UsageError
from core.events import Source
from core.topics import TopicSpec
from engine.codec import codec_of
from engine.record import Headers, Record
from engine.tracing import NO_PARENTS, context_of, kept_trace, output_headers, people

if TYPE_CHECKING:
    from engine.spans import EventSpan
    from engine.table import Shard
    from engine.task import PartitionTask

E = TypeVar("E")
T = TypeVar("T")

EARLY: Final = ("early", b"1")
"""Header of an output that left before its commit: a crash may repeat it, or make another one of the same input."""

SHOWN: Final = 3
"""Slices of a batch that a log line names."""

_current: ContextVar[Slice[Any]] = ContextVar("slice")
_batch: ContextVar[Batch[Any] | None] = ContextVar("batch", default=None)


class Staged(NamedTuple):
    """Outputs of a slice that wait until every earlier slice of the partition has finished."""

    topic: str
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers]
    partition: int


class Slice(Generic[E]):
    """Records of one source partition. Its writes and outputs stay with it until the finished prefix reaches it."""

    __slots__ = (
        "accepted_at",
        "alone",
        "begun",
        "changed",
        "done",
        "dropped",
        "early",
        "epoch",
        "erases",
        "events",
        "first",
        "last",
        "marks",
        "newest",
        "oldest",
        "outputs",
        "parents",
        "records",
        "size",
        "spans",
        "task",
        "topic",
        "trace",
        "weight",
        "youngest",
    )

    def __init__(self, task: PartitionTask, topic: str, records: list[Record]) -> None:
        self.task = task
        self.topic = topic
        self.records = records
        """Those that are still good; events[i] is what records[i] decodes to."""
        self.events: list[E] = []
        self.first = records[0].offset
        self.last = records[-1].offset
        self.size = len(records)
        self.oldest = records[0].timestamp
        self.youngest = records[-1].timestamp
        """When its first and last record were written, ms since epoch."""
        self.accepted_at = time.monotonic()
        self.trace: str | None = None
        """The trace of one of its records, if somebody keeps it."""
        self.spans: Sequence[EventSpan] = ()
        """Of those events whose senders keep their traces, where the worker makes spans."""
        self.parents: Mapping[int, bytes] = NO_PARENTS
        """Offset -> the traceparent that outputs of its record carry on, where that isn't the record's own."""
        self.weight = 0
        """Bytes of its records, about."""
        self.done = False
        self.alone = False
        """Whether it must not share a batch: an agent failed on records around it."""
        self.begun = False
        """Whether an agent works on it, or has."""
        self.erases = False
        """Whether it erases a session."""
        self.early = False
        """Whether its outputs leave at once, as its agent has declared."""
        self.newest = -1
        """Newest event time in it, ms since epoch: moves the partition's watermark."""
        self.marks: list[int] | None = None
        """The watermark before the first event and after each, where the agent asked for event time."""
        self.epoch = task.epoch
        self.changed: list[tuple[Shard, Any]] = []
        self.outputs: list[Staged] = []
        self.dropped: list[tuple[int, Staged]] = []
        """Dead letters of records that never became events, with the offset each stands at."""

    @property
    def partition(self) -> int:
        """The partition's number, the same for its state and outputs."""
        return self.task.partition

    @property
    def stale(self) -> bool:
        """Whether its task has moved on without it: nothing it does counts any more."""
        return self.epoch != self.task.epoch

    @property
    def keys(self) -> list[bytes]:
        """Keys of the records; those without one never got here as events."""
        return [record.key or b"" for record in self.records]

    @property
    def sources(self) -> list[str]:
        """Where each record stands, as outputs' ids and headers name it."""
        prefix = f"{self.topic}/{self.partition}/"
        return [f"{prefix}{record.offset}" for record in self.records]

    def source(self, i: int) -> Source:
        """Where record i stands."""
        return Source(self.topic, self.partition, self.records[i].offset)

    def about(self, i: int) -> dict[str, str]:
        """What a log line says of record i: where it stands, its trace, who it is on behalf of; its session as a
        hash."""
        record = self.records[i]
        told = {"source": str(self.source(i)), **people(record.headers)}
        if (context := context_of(record.headers)) is not None:
            told["trace_id"] = context.trace.decode()
        session = getattr(self.events[i], "session", None) if i < len(self.events) else None
        return told | {"session": pseudonym(session)} if isinstance(session, str) else told

    @property
    def stretch(self) -> str:
        """Where its records stand."""
        return f"{self.topic}/{self.partition}/{self.first}-{self.last}"

    def give_spans(self, spans: Sequence[EventSpan]) -> None:
        """The work on some of its events is a span each: outputs of an event belong to its span."""
        self.spans = spans
        self.parents = {span.offset: span.traceparent for span in spans}

    def judge_spans(self) -> None:
        """Spans of events that became dead letters, or were late, say so."""
        reasons = {offset: dict(letter.headers[0]).get("error") or b"late" for offset, letter in self.dropped}
        for span in self.spans:
            if span.offset in reasons:
                span.failed(reasons[span.offset].decode())

    def emit(
        self,
        topic: TopicSpec[Any],
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        headers: Sequence[Headers],
        partition: int | None = None,
    ) -> None:
        """Stages outputs: they leave with the state and the positions, or not at all; an early agent's leave at once.

        partition: where to, by default this slice's own. Raises OutputTooLargeError, and UsageError for a topic that
        the worker has not made sure of: the broker would be asked for it for ever.
        """
        if topic.name not in self.task.engine.outputs:
            raise UsageError(f"{topic.name} is not among the agent's outputs: declare it, @agent(..., outputs=[...])")
        limit = self.task.engine.settings.max_record
        largest = max(map(len, filter(None, values)), default=0)
        if largest > limit:
            raise OutputTooLargeError(
                f"an output for {topic.name} has {largest} bytes; HOMUNCULUS_MAX_RECORD allows {limit}"
            )
        name = self.task.engine.topic_name(topic)
        target = self.partition if partition is None else partition
        if not self.early:
            self.outputs.append(Staged(name, keys, values, headers, target))
        elif not self.stale:
            self.task.send_early(Staged(name, keys, values, [[*of_one, EARLY] for of_one in headers], target))

    def send(self, topic: TopicSpec[T], key: str, value: T, at: int = 0) -> None:
        """Stages one output of record number `at` of the slice, with its headers."""
        headers = output_headers(self.topic, self.partition, self.records[at : at + 1], self.parents)
        self.emit(topic, [key.encode()], [codec_of(topic.value).encode(value)], headers)

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """What is written and sent in the block joins the next commit, before the slice itself is finished: for work of
        one record that takes long and must not be begun anew. The record comes again after a crash, so what is written
        has to say how far its work has come. Nothing may be awaited in the block. Raises TaskError where the partition
        has moved on.
        """
        if self.stale:
            raise TaskError(f"partition {self.partition} has moved on; this work is done again")
        step: Slice[E] = Slice(self.task, self.topic, self.records)
        step.events, step.parents, step.spans = self.events, self.parents, self.spans
        before = _current.set(step)
        try:
            yield
        except BaseException:
            self.task.undo(step)
            raise
        finally:
            _current.reset(before)
        step.done = True
        self.task.fired(step)

    def finish(self) -> None:
        """All of it is done: effects join the next commit once every earlier slice has finished."""
        self.done = True
        if not self.stale:
            self.task.advance(self.topic)

    def split(self) -> list[Slice[E]]:
        """One slice an event, for work that takes long and runs concurrently; none when no event is left."""
        parts: list[Slice[E]] = []
        for record, event in zip(self.records, self.events, strict=True):
            part: Slice[E] = Slice(self.task, self.topic, [record])
            part.epoch = self.epoch
            part.early = self.early
            part.accepted_at = self.accepted_at
            part.trace = kept_trace(record)
            part.weight = self.weight // len(self.events)
            part.events = [event]
            parts.append(part)
        if self.marks is not None:
            for part, marks in zip(parts, pairwise(self.marks), strict=True):
                part.marks = list(marks)
                ts = part.events[0].ts  # type: ignore[attr-defined]
                if ts <= self.newest:  # else it is ahead of the clock
                    part.newest = ts
        if not parts or self.stale:
            return parts
        for part, following in pairwise(parts):
            part.last = following.first - 1
        parts[-1].last = self.last
        parts[-1].size += self.size - len(parts)
        parts[-1].weight += self.weight - len(parts) * parts[-1].weight
        for offset, letter in self.dropped:
            next(part for part in parts if offset <= part.last).dropped.append((offset, letter))
        for part in parts if self.spans else ():
            part.give_spans([span for span in self.spans if part.first <= span.offset <= part.last])
        self.task.replace(self, parts)
        return parts


class Batch(Generic[E]):
    """The events of one read: a slice from each partition that had some. One model run can serve them all."""

    __slots__ = ("_lap_at", "began", "laps", "size", "slices", "trace")

    def __init__(self, slices: list[Slice[E]], began: float | None = None) -> None:
        """began: monotonic, where that isn't right now."""
        self.slices = slices
        self.size = len(self)
        """Events that it began with: some may turn out to be dead letters."""
        self.began = self._lap_at = time.monotonic() if began is None else began
        self.trace: str | None = None
        """Of the span of the work on it, where the worker makes spans."""
        self.laps: dict[str, float] = {}
        """Stage -> seconds that the batch has spent in it."""

    def __len__(self) -> int:
        return sum(len(s.events) for s in self.slices)

    @property
    def events(self) -> list[E]:
        """All events, in the order of the slices."""
        if len(self.slices) == 1:
            return self.slices[0].events
        return [event for s in self.slices for event in s.events]

    def by_partition(self) -> dict[int, list[Slice[E]]]:
        """The slices of each partition that still is ours, in order."""
        found: dict[int, list[Slice[E]]] = {}
        for s in self.slices:
            if not s.stale:
                found.setdefault(s.partition, []).append(s)
        return found

    def __iter__(self) -> Iterator[E]:
        """Event by event; tables that are read and written meanwhile are those of the event's partition."""
        for s in self.slices:
            _current.set(s)
            yield from s.events if s.marks is None else s.task.clock.between(s)

    @property
    def stale(self) -> bool:
        """Whether nothing of it counts any more."""
        return all(s.stale for s in self.slices)

    def lap(self, stage: str) -> None:
        """The time since the last lap, or since the batch came, went into a stage: metrics and traces show it."""
        now = time.monotonic()
        self.laps[stage] = self.laps.get(stage, 0.0) + now - self._lap_at
        self._lap_at = now

    def finish(self) -> None:
        """All slices are done."""
        for s in self.slices:
            if not s.done:
                s.finish()


def current_slice() -> Slice[Any]:
    """The slice whose event is being worked on. Raises UsageError outside of `for event in batch`."""
    try:
        return _current.get()
    except LookupError:
        raise UsageError(
            "tables are read and written while an event is worked on: inside `for event in batch`"
        ) from None


def slice_at_work() -> Slice[Any] | None:
    """The current slice, if there is one."""
    return _current.get(None)


def told_of_work() -> dict[str, str]:
    """What a log line says of the work that it comes out of: exact where that is one record."""
    s, batch = _current.get(None), _batch.get()
    if s is not None and not s.done:
        if len(s.records) == 1:
            return s.about(0)
        told = {"source": s.stretch}
    elif batch is not None:
        told = {"source": ", ".join(part.stretch for part in batch.slices[:SHOWN])}
    else:
        return {}
    return told | ({"trace_id": batch.trace} if batch is not None and batch.trace is not None else {})


def working_through(batch: Batch[Any] | None) -> None:
    """Makes a batch the current one of this asyncio task, for its log lines."""
    _batch.set(batch)


def working_on(s: Slice[Any]) -> None:
    """Makes a slice the current one of this asyncio task."""
    s.begun = True
    _current.set(s)
