"""What an agent sees: a batch of events, made of one slice a partition; a slice finishes as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from core.errors import OutputTooLargeError, UsageError
from core.events import Source
from core.topics import TopicSpec
from engine.codec import codec_of
from engine.record import Headers, Record
from engine.tracing import output_headers

if TYPE_CHECKING:
    from engine.table import Shard
    from engine.task import PartitionTask

E = TypeVar("E")
T = TypeVar("T")

EARLY: Final = ("early", b"1")
"""Header of an output that left before its commit: a crash may repeat it, or make another one of the same input."""

_current: ContextVar[Slice[Any]] = ContextVar("slice")


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
        "alone",
        "begun",
        "changed",
        "done",
        "dropped",
        "early",
        "epoch",
        "events",
        "first",
        "last",
        "marks",
        "newest",
        "outputs",
        "records",
        "size",
        "task",
        "topic",
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
        self.done = False
        self.alone = False
        """Whether it must not share a batch: an agent failed on records around it."""
        self.begun = False
        """Whether an agent works on it, or has."""
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
        headers = output_headers(self.topic, self.partition, self.records[at : at + 1])
        self.emit(topic, [key.encode()], [codec_of(topic.value).encode(value)], headers)

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
        for offset, letter in self.dropped:
            next(part for part in parts if offset <= part.last).dropped.append((offset, letter))
        self.task.replace(self, parts)
        return parts


class Batch(Generic[E]):
    """The events of one read: a slice from each partition that had some. One model run can serve them all."""

    __slots__ = ("slices",)

    def __init__(self, slices: list[Slice[E]]) -> None:
        self.slices = slices

    def __len__(self) -> int:
        return sum(len(s.events) for s in self.slices)

    @property
    def events(self) -> list[E]:
        """All events, in the order of the slices."""
        if len(self.slices) == 1:
            return self.slices[0].events
        return [event for s in self.slices for event in s.events]

    def __iter__(self) -> Iterator[E]:
        """Event by event; tables that are read and written meanwhile are those of the event's partition."""
        for s in self.slices:
            _current.set(s)
            yield from s.events if s.marks is None else s.task.clock.between(s)

    @property
    def stale(self) -> bool:
        """Whether nothing of it counts any more."""
        return all(s.stale for s in self.slices)

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


def working_on(s: Slice[Any]) -> None:
    """Makes a slice the current one of this asyncio task."""
    s.begun = True
    _current.set(s)
