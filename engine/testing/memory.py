"""An application without a broker: its real agents, tables, tasks and commits on a log in memory."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from aiokafka import TopicPartition

from core.errors import ModelError, TrialError, UsageError
from core.events import Deployment
from core.settings import Settings
from core.topics import ALL, TopicSpec
from engine.agent import Agent, declared
from engine.batch import Slice
from engine.changelog import POSITIONS, Changelog
from engine.connection import Connection
from engine.engine import Engine
from engine.publisher import partition_of
from engine.table import Shard, Table
from engine.task import PartitionTask
from engine.testing.log import Log, LogChangelog, LogCommitter, changelog_of
from engine.testing.trial import SETTLE_S, Trial, Written, encoded, given, timestamp
from models.decoder.decoder import Decoder, Sizes
from models.device import Device
from models.engines import Talking
from models.inference import InferenceThread
from models.live import LiveModels
from models.store import ModelStore

E = TypeVar("E")

BATCH: Final = 1000
"""Records of a partition that an agent gets at once, at most."""
PATIENCE_S: Final = 10.0
"""Seconds that an agent may take for a batch, and a partition to open."""
LOOK_S: Final = 0.001


class MemoryEngine(Engine):
    """A worker's engine that owns all partitions of a log. One a life: a crash makes a new one."""

    def __init__(self, settings: Settings, tables: Mapping[str, Table[Any, Any]], models: LiveModels, log: Log) -> None:
        super().__init__(settings, tables, models)
        self.connection = Connection(settings, "memory", {}, settings.guarantee, idempotent=True)
        self.committer = LogCommitter(self, log)
        self.ahead = timedelta(0)
        """How far its clock is ahead of ours."""
        self.failure: BaseException | None = None
        """What would have ended the process."""
        self._log = log
        self.ready.set()

    def changelog(self, partition: int) -> Changelog:
        """On the log."""
        return LogChangelog(self.connection, partition, list(self.tables), self._log)

    def now_ms(self) -> int:
        """The trial's clock."""
        return super().now_ms() + self.ahead // timedelta(milliseconds=1)

    async def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Nothing to do: tasks are asked for what they accept next."""

    def seek_now(self, tp: TopicPartition, offset: int) -> None:
        """As seek()."""

    def begins(self, tp: TopicPartition) -> int:
        """Topics are whole."""
        return 0

    def behind(self, tp: TopicPartition) -> bool:
        """Whether a task has not been given all."""
        return self.tasks[tp.partition].next_offset(tp.topic) < self._log.end(tp)

    def fatal(self, error: BaseException) -> None:
        """The trial's next wait raises it."""
        self.failure = self.failure or error


class InMemory(Trial):
    """Whoever tests decides what happens when: batches of any size, commits, crashes, what time it is.

    send() has the events worked on at once, in batches; nothing is committed before commit() or settle(). What an
    agent commits to a topic that another agent reads is that one's input.
    """

    def __init__(
        self, agents: Iterable[Agent[Any]], tables: Iterable[Table[Any, Any]], batch: int, settings: Settings
    ) -> None:
        self.settings = settings
        self.batch = batch
        """Records of a partition that an agent gets at once, at most."""
        self.log = Log()
        """What a broker would hold."""
        self._agents = tuple(agents)
        if len({agent.topic.name for agent in self._agents}) < len(self._agents):
            raise UsageError("two of these agents read the same topic: one agent a topic, as in a worker")
        self._tables = {table.name: table for table in tables}
        self._feeds: dict[str, _Feed] = {}
        self._lives = 0
        self._ahead = timedelta(0)

    async def __aenter__(self) -> Self:
        settings = self.settings
        device, store = Device.of(settings.device, memory=settings.gpu_memory), ModelStore(settings.model_store)
        async with AsyncExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="homunculus-trial-")))
            thread = InferenceThread()
            stack.push_async_callback(thread.close)
            sizes = Sizes(settings.chat_slots, settings.chat_context, threads=settings.chat_threads)
            talking = Talking(sizes, self._folder / ".kv", settings.chat_disk)
            beside = frozenset(filter(None, [settings.intent_model, settings.reranker_model]))
            self.models = LiveModels(store, device, thread, settings.default_model, talking=talking, beside=beside)
            stack.push_async_callback(self._free)
            stack.push_async_callback(self._close)
            await self._open()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _free(self) -> None:
        """Models end, and with them what writes into the folder."""
        decoders = [one.engine for one in self.models.versions() if isinstance(one.engine, Decoder)]
        self.models.close()
        for decoder in decoders:
            await asyncio.to_thread(decoder.join)

    # -- as on a broker -----------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: TopicSpec[E],
        events: Iterable[E | bytes],
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        at: datetime | None = None,
    ) -> None:
        """Publishes events, and has all of the topic worked on. It returns when the agent has asked for more."""
        self.publish(topic, events, key=key, headers=headers, at=at)
        await self.work(topic)

    async def settle(self, within_s: float = SETTLE_S) -> None:
        """Has everything worked on, what agents have written for each other too, and what is due fire; commits."""
        try:
            async with asyncio.timeout(within_s):
                while self._unread() or self._unsettled():
                    for agent in self._agents:
                        await self.work(agent.topic)
                    await self.elapse(timedelta(0))
                    await self.commit()
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            left = ", ".join(self._unread() + self._unsettled())
            raise TrialError(
                f"not all that was sent is finished within {within_s:g} s: {left}. An agent still works on it, or "
                "waits for something (a model? await trial.deploy(NAME, VERSION) first)"
            ) from None

    async def crash(self) -> None:
        """Everything but what is committed is gone; a new life begins."""
        await self._close()
        await self._open()

    async def deploy(self, model: str, version: str) -> None:
        """Loads a version of the store and makes it answer, as a deployment would."""
        now = int(time.time() * 1e3)
        try:
            await self.models.converge(Deployment(model=model, revision=now, active=version, since=now))
        except ModelError as error:
            raise TrialError(f"{model}@{version} does not go live: {error}") from error

    # -- in memory alone ----------------------------------------------------------------------------------------------

    def publish(
        self,
        topic: TopicSpec[E],
        events: Iterable[E | bytes],
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        at: datetime | None = None,
    ) -> None:
        """As send(), but nothing is worked on: read() and settle() are free to choose when."""
        self._agent(topic)
        name, tags = self.engine.topic_name(topic), [(name, text.encode()) for name, text in (headers or {}).items()]
        for raw_key, value in encoded(topic, events, key):
            partition = partition_of(raw_key, self.settings.partitions)
            self.log.append(TopicPartition(name, partition), raw_key, value, tags, timestamp(at))

    async def work(self, topic: TopicSpec[Any]) -> None:
        """Has all that a topic holds worked on, in batches."""
        while await self.read(topic, self.batch):
            pass

    async def read(self, topic: TopicSpec[Any], size: int) -> bool:
        """Gives an agent its next batch, of at most so many records a partition; whether there was anything to give.
        It returns when the agent asks for more: work that it does concurrently may go on."""
        await self._opened()
        if self.closed:
            raise TrialError(f"partitions that stay closed: {self.closed}")
        feed, name = self._feeds[self._agent(topic).topic.name], self.engine.topic_name(topic)
        slices: list[Slice[Any]] = []
        for partition, task in self.engine.tasks.items():
            tp = TopicPartition(name, partition)
            if records := self.log.records(tp, task.next_offset(name), size):
                slices += task.accept(name, [*records])
        if slices:
            await feed.give(slices)
        self._check()
        return bool(slices)

    async def commit(self) -> None:
        """What is finished survives from now on."""
        await self.engine.committer.commit()

    async def elapse(self, by: timedelta) -> None:
        """Moves the clock that timers by the clock go by, and fires what is due."""
        self._ahead += by
        self.engine.ahead = self._ahead
        for task in self.engine.tasks.values():
            task.clock.strike()
        self._check()

    async def release(self, agents: Iterable[Any], tables: Iterable[Table[Any, Any]], **settings: Any) -> None:
        """Another release of the application takes over from what is committed; settings: those that it changes."""
        await self._close()
        self._agents = _resolved(agents)
        self._tables = {table.name: table for table in tables}
        self.settings = self.settings.model_copy(update=settings)
        await self._open()

    @property
    def closed(self) -> dict[int, str]:
        """Partitions that this release can't open, and why."""
        return {n: task.reason for n, task in self.engine.tasks.items() if "a newer release" in task.reason}

    # -- what is committed --------------------------------------------------------------------------------------------

    def watermark(self, partition: int = 0) -> int:
        """The committed watermark, ms since epoch; -1 before the first event."""
        return self.log.marker(self._changelog(POSITIONS, partition)).watermark

    def positions(self, partition: int = 0) -> dict[str, int]:
        """Topic -> the offset behind the last event whose work is committed."""
        return dict(self.log.marker(self._changelog(POSITIONS, partition)).positions)

    def _records(self, topic: TopicSpec[Any], partition: int) -> Iterable[Written]:
        return self.log.records(TopicPartition(self.settings.topic_prefix + topic.name, partition))

    def _stored(self, table: Table[Any, Any], partition: int) -> Mapping[bytes, bytes]:
        return self.log.newest(self._changelog(table.name, partition))

    def _shard(self, table: Table[Any, Any], partition: int) -> Shard:
        shard: Shard = self.engine.tasks[partition].shard(table.name)
        return shard

    def _changelog(self, table: str, partition: int) -> TopicPartition:
        return changelog_of(self.settings.app_id, self.settings.topic_prefix, table, partition)

    # -- its lives ----------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        self._lives += 1
        settings = self.settings.model_copy(update={"data_dir": self._folder / str(self._lives)})
        self.engine = engine = MemoryEngine(settings, self._tables, self.models, self.log)
        engine.ahead = self._ahead
        names = {engine.topic_name(agent.topic): agent for agent in self._agents}
        engine.sources = set(names)
        engine.timed_sources = {name for name, agent in names.items() if agent.event_time}
        engine.has_early = any(agent.early for agent in self._agents)
        specs = [spec for agent in self._agents for spec in (agent.topic, *agent.outputs)]
        engine.outputs = frozenset(spec.name for spec in (*ALL, *specs))
        engine.tasks = {n: PartitionTask(engine, n, names) for n in range(settings.partitions)}
        self._feeds = {agent.topic.name: _Feed(agent, engine) for agent in self._agents}
        await self._opened()

    async def _opened(self) -> None:
        """Waits until each partition is open, or known to stay closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while not all(task.open or n in self.closed for n, task in self.engine.tasks.items()):
                    self._check()
                    await asyncio.sleep(LOOK_S)
                return
        reasons = {n: task.reason for n, task in self.engine.tasks.items() if not task.open}
        raise TrialError(f"partitions that don't open: {reasons}")

    async def _close(self) -> None:
        for feed in self._feeds.values():
            await feed.close()
        for task in self.engine.tasks.values():
            await task.close()

    def _check(self) -> None:
        if self.engine.failure is not None:
            raise self.engine.failure

    def _agent(self, topic: TopicSpec[Any]) -> Agent[Any]:
        for agent in self._agents:
            if agent.topic.name == topic.name:
                return agent
        reads = ", ".join(sorted(agent.topic.name for agent in self._agents)) or "nothing"
        raise UsageError(f"no agent of this trial reads {topic.name} (they read {reads}): give it to in_memory()")

    def _unread(self) -> list[str]:
        return [
            f"{topic}/{n} from {task.next_offset(topic)} on isn't read"
            for n, task in self.engine.tasks.items()
            if task.open
            for topic in task.topics
            if self.engine.behind(TopicPartition(topic, n))
        ]

    def _unsettled(self) -> list[str]:
        """What isn't finished, or not committed."""
        left = [f"partition {n} is not open" for n, task in self.engine.tasks.items() if not task.open]
        for task in self.engine.tasks.values():
            left += [f"{s.topic}/{s.partition}/{s.first} is at work" for s in task.unfinished()]
            left += [] if task.idle else [f"partition {task.partition} has something to commit"]
            left += [f"in partition {task.partition} something is due"] if task.clock.overdue else []
        return left


class _Feed:
    """An agent at work, and what it gets."""

    def __init__(self, agent: Agent[Any], engine: MemoryEngine) -> None:
        self._queue: asyncio.Queue[list[Slice[Any]]] = asyncio.Queue()
        self._idle = asyncio.Event()
        self._agent, self._engine = agent, engine
        self._runner = asyncio.create_task(agent.run(engine, self._polls()))

    async def _polls(self) -> AsyncIterator[list[Slice[Any]]]:
        while True:
            self._idle.set()
            yield await self._queue.get()

    async def give(self, slices: list[Slice[Any]]) -> None:
        """Returns when the agent asks for more. Raises TrialError when it doesn't."""
        self._idle.clear()
        self._queue.put_nowait(slices)
        until = time.monotonic() + PATIENCE_S
        while not self._idle.is_set() and self._engine.failure is None:
            if self._runner.done():
                self._runner.result()
                raise TrialError(f"{self._agent.name} has returned: an agent reads its stream for ever")
            if time.monotonic() > until:
                raise TrialError(
                    f"{self._agent.name} has not asked for its next batch for {PATIENCE_S:g} s: it waits for something "
                    "(a model? await trial.deploy(NAME, VERSION) first)"
                )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), 0.05)

    async def close(self) -> None:
        """The agent is stopped where it is."""
        self._runner.cancel()
        await asyncio.wait([self._runner])


def in_memory(
    agents: Iterable[Callable[..., Any] | Agent[Any]],
    tables: Iterable[Table[Any, Any]],
    *,
    batch: int = BATCH,
    **settings: Any,
) -> InMemory:
    """Agents (functions under @agent) and the tables that they use, without a broker.

    batch: records of a partition that an agent gets at once, at most. settings: those of HOMUNCULUS_*, in lower case;
    partitions is 1 by default, allowed_lateness and the others are what they always are.
    """
    if batch < 1:
        raise UsageError(f"batch is {batch}: an agent gets at least one record at once")
    return InMemory(_resolved(agents), tables, batch, given({"partitions": 1, **settings}))


def _resolved(agents: Iterable[Callable[..., Any] | Agent[Any]]) -> tuple[Agent[Any], ...]:
    return tuple(one if isinstance(one, Agent) else _declared(one) for one in agents)


def _declared(body: Callable[..., Any]) -> Agent[Any]:
    for agent in declared:
        if agent.body is body:
            return agent
    raise UsageError(f"{getattr(body, '__name__', body)!r} is no agent: declare it, @agent(TOPIC) of engine.agent")
