"""Agents: a function over a stream of batches. A record that an agent can't process alone goes to dead-letters."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, get_type_hints

import msgspec
from pydantic import ValidationError

from core.errors import (
    CorruptStoreError,
    DataFolderError,
    DecodeError,
    FatalError,
    KeyMismatchError,
    RecordError,
    TaskError,
    UsageError,
)
from core.events import Source
from core.topics import TopicSpec
from engine.batch import Batch, Slice, working_on, working_through
from engine.codec import codec_of, explain
from engine.dead_letters import dead_letter
from engine.engine import Engine
from engine.tracing import kept_trace

if TYPE_CHECKING:
    from engine.spans import BatchSpan

log = logging.getLogger(__name__)

E = TypeVar("E")


class Stream(Generic[E]):
    """What an agent iterates over. Asking for the next batch finishes the one before."""

    def __init__(
        self,
        engine: Engine,
        topic: TopicSpec[E],
        polls: AsyncIterator[list[Slice[E]]],
        event_time: bool = False,
        early: bool = False,
        rests: bool = False,
    ) -> None:
        self.engine = engine
        self.topic = topic
        self._event_time = event_time
        self._early = early
        self._rests = rests
        self._polls = polls
        self._alone: deque[Slice[E]] = deque()
        self._decode = codec_of(topic.value).decode
        self._keyed = topic.key == "session"
        self._batch: Batch[E] | None = None
        self._span: BatchSpan | None = None
        """Of the work on it, where the worker makes spans."""
        self._reopening: asyncio.Task[None] | None = None

    def __aiter__(self) -> Stream[E]:
        return self

    async def __anext__(self) -> Batch[E]:
        if self._batch is not None:
            self._batch.laps["work"] = time.monotonic() - self._batch.began
            self._measured(self._batch)
            self._batch.finish()
            self._batch = None
        while True:
            slices = [s for s in await self._next_slices() if not s.stale]
            if slices and (batch := self._begin(slices)).slices:
                return batch

    def _begin(self, slices: list[Slice[E]]) -> Batch[E]:
        """What is left of slices when they have been decoded; it is the current batch, if that is anything."""
        engine, began = self.engine, time.monotonic()
        for s in slices:
            s.trace = kept_trace(s.records[0])
        if engine.traces is not None:
            self._span = engine.traces.batch(slices)
        engine.meters.begun(slices)
        for s in slices:
            s.begun = True
            s.early = self._early
            if self._rests:
                s.oldest = -1  # that it waits says nothing of the worker's latency
            self._decode_slice(s)
            if not s.events:
                s.finish()
        batch = Batch([s for s in slices if s.events], began)
        batch.lap("decode")
        if self._span is not None:
            batch.trace = self._span.trace
            self._span.decoded()
        if batch.slices:
            self._batch = batch
            working_through(batch)
        else:
            self._measured(batch)
        return batch

    def _measured(self, batch: Batch[E], error: Exception | None = None) -> None:
        """The agent is through with a batch, or has failed on it."""
        working_through(None)
        self.engine.meters.worked(batch)
        if self._span is not None:
            self._span.end(batch.laps, error)
            self._span = None

    async def each(
        self,
        handle: Callable[[E], Awaitable[None]],
        concurrency: int,
        overtakes: Callable[[Slice[E]], bool] | None = None,
    ) -> None:
        """Calls handle for every event: concurrently over keys, in order within one, at most so many at once.

        An event's writes and outputs (tables, `current_slice().send`) count once all events before it are finished,
        so that long work never holds a transaction open, and a crash repeats only what was not finished.

        overtakes: asked of every event as it comes; one that does waits neither for those of its key before it nor for
        room.
        """
        room = asyncio.Semaphore(concurrency)
        last: dict[tuple[int, bytes], asyncio.Task[None]] = {}
        running = set[asyncio.Task[None]]()
        """Those that overtake: a task that nobody holds may be collected."""

        async def work(s: Slice[E], key: tuple[int, bytes], before: asyncio.Task[None] | None) -> None:
            try:
                if before is not None:
                    await asyncio.wait([before])
                if s.stale:
                    return
                await self._work(s, handle)
            except (FatalError, DataFolderError) as error:
                self.engine.fatal(error)
            except TaskError as error:  # nothing that the record could help
                if isinstance(error, CorruptStoreError):
                    self._reopen(error)
                elif not s.stale:
                    s.task.read_again()
            except Exception as error:
                if not s.stale:
                    give_up(s, error)
            else:
                if not s.stale:
                    s.finish()
            finally:
                running.discard(cast("asyncio.Task[None]", asyncio.current_task()))
                if last.get(key) is asyncio.current_task():
                    del last[key]

        async def work_in_room(s: Slice[E], key: tuple[int, bytes], before: asyncio.Task[None] | None) -> None:
            try:
                await work(s, key, before)
            finally:
                room.release()

        async for batch in self:
            self._batch = None  # its slices finish by themselves
            for s in batch.slices:
                for part in s.split():
                    key = (part.partition, part.keys[0])
                    if overtakes is not None and overtakes(part):
                        running.add(asyncio.create_task(work(part, key, None)))
                        continue
                    await room.acquire()
                    last[key] = asyncio.create_task(work_in_room(part, key, last.get(key)))
            self._measured(batch)

    async def _work(self, s: Slice[E], handle: Callable[[E], Awaitable[None]]) -> None:
        """One event, in an asyncio task of its own."""
        working_on(s)
        began = time.monotonic()
        for span in s.spans:
            span.enter()
        await handle(s.events[0])
        seconds = time.monotonic() - began
        self.engine.meters.stage("work", seconds, 1, s.trace)
        for span in s.spans:
            span.note({"homunculus.stage.work_s": seconds})

    def failed(self, error: Exception) -> bool:
        """The agent raised on the current batch. One record: to dead-letters. More: they come again, one by one.

        Returns whether there was a batch to blame.
        """
        batch, self._batch = self._batch, None
        if batch is not None:
            self._measured(batch, error)
        if isinstance(error, CorruptStoreError):
            self._reopen(error)
            return True
        if batch is None:
            return isinstance(error, TaskError)
        unfinished = [s for s in batch.slices if not s.done and not s.stale]
        if len(unfinished) == 1 and unfinished[0].alone and not isinstance(error, TaskError):
            give_up(unfinished[0], error)
        else:
            for s in unfinished:
                if not s.stale:
                    s.task.rewind(s)
        return True

    def _reopen(self, error: CorruptStoreError) -> None:
        if self._reopening is None or self._reopening.done():
            self._reopening = asyncio.create_task(self.engine.committer.failed(error))

    async def _next_slices(self) -> list[Slice[E]]:
        if not self._alone:
            slices = await anext(self._polls)
            if not any(s.alone for s in slices):
                return slices
            # After a failure each record is a batch of its own, or its neighbours would fail with it.
            self._alone.extend(slices)
        return [self._alone.popleft()]

    def _decode_slice(self, s: Slice[E]) -> None:
        decode, events = self._decode, s.events
        records = s.records
        bad: list[tuple[int, RecordError]] = []
        for i, record in enumerate(records):
            try:
                if record.value is None and self.topic.deletes:
                    events.append(None)  # type: ignore[arg-type]
                    continue
                event = decode(record.value)  # type: ignore[arg-type]
                if self._keyed and record.key != event.session.encode():  # type: ignore[attr-defined]
                    raise KeyMismatchError(record.key, event.session)  # type: ignore[attr-defined]
                events.append(event)
            except RecordError as error:
                bad.append((i, error))
            except (msgspec.MsgspecError, ValidationError, RecursionError, TypeError, ValueError) as error:
                bad.append((i, DecodeError("the value is null") if record.value is None else explain(error)))
        for i, reason in bad:
            s.dropped.append((records[i].offset, dead_letter(s, records[i], reason)))
        if bad:
            wrong = {i for i, _ in bad}
            s.records = [record for i, record in enumerate(records) if i not in wrong]
        if self._event_time:
            s.task.clock.mark(s)


def give_up(s: Slice[Any], error: Exception) -> None:
    """A slice of one record can't be processed: its state goes back, the record goes to dead-letters, unless it is
    there already."""
    if not isinstance(error, RecordError):
        source, about = Source(s.topic, s.partition, s.first), s.about(0) if s.records else {}
        log.error("%s failed and goes to dead-letters", source, exc_info=error, extra=about)
    s.task.undo(s)
    s.outputs.clear()
    if s.records and all(offset != s.records[0].offset for offset, _ in s.dropped):  # neighbours' letters are there too
        s.dropped.append((s.first, dead_letter(s, s.records[0], error)))
    s.finish()


Body = Callable[[Stream[E]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Agent(Generic[E]):
    """A declared agent: create_app() gives it to Faust."""

    topic: TopicSpec[E]
    body: Body[E]
    outputs: tuple[TopicSpec[Any], ...] = ()
    """Topics that it writes to, beside those of core/topics.py."""
    event_time: bool = False
    """Whether its events move the watermark, and late ones go to `late`."""
    early: bool = False
    """Whether its outputs leave before their commit."""
    rest_s: float = 0.0
    """Seconds between two looks at its topic."""

    @property
    def name(self) -> str:
        """As `faust -A app agents` shows it."""
        return f"{self.body.__module__}.{self.body.__name__}"

    async def run(self, engine: Engine, polls: AsyncIterator[list[Slice[E]]]) -> None:
        """The body for ever: an error costs it a record, never the partition."""
        stream = Stream(engine, self.topic, polls, self.event_time, self.early, self.rest_s > 0)
        while True:
            try:
                await self.body(stream)
                return
            except (FatalError, DataFolderError) as error:
                engine.fatal(error)
                await asyncio.Event().wait()
            except Exception as error:
                if not stream.failed(error):
                    engine.fatal(error)
                    await asyncio.Event().wait()


declared: list[Agent[Any]] = []
"""Every agent whose module has been imported."""


def agent(
    topic: TopicSpec[E],
    outputs: Iterable[TopicSpec[Any]] = (),
    *,
    event_time: bool = False,
    early: bool = False,
    rest_s: float = 0.0,
) -> Callable[[Body[E]], Body[E]]:
    """Declares a function over the batches of a topic: `async def score(stream: Stream[Observation])`.

    outputs: your own topics that it writes to; they are created with the others when the worker starts.
    event_time: its events move the partition's watermark by their `ts` (ms since epoch), late ones go to `late`, and
    what is due fires between two events (docs/event_time.md).
    early: what it sends can't wait for the commit. It leaves at once, with the header `early`; its state is as exact as
    ever, but a crash may repeat these outputs, as at_least_once may (docs/guarantees.md).
    rest_s: its topic is looked at every so many seconds, and what came meanwhile is read in one go: for work that costs
    by the batch, and that nobody waits for. One that is far behind is read without a rest.
    """
    if event_time and "ts" not in get_type_hints(topic.value):
        raise UsageError(f"{topic.value.__qualname__} has no field ts: event time is read from there")

    def declare(body: Body[E]) -> Body[E]:
        declared.append(Agent(topic, body, tuple(outputs), event_time, early, rest_s))
        return body

    return declare
