"""One partition of an application without a broker: the real task, agent and tables; what is committed is kept here."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Self, cast

import msgspec
import pytest
from aiokafka import TopicPartition

from core.settings import Settings
from core.topics import ALL
from engine import task as task_module
from engine.agent import Agent
from engine.batch import Slice
from engine.engine import Engine
from engine.meters import Meters
from engine.outputs import Builders
from engine.schema import FORMAT
from engine.store import Meta, PartitionStore, RocksMemory
from engine.table import Items, Table
from engine.task import PartitionTask
from engine.watches import Watches


class Input(NamedTuple):
    """A record of the source topic."""

    offset: int
    timestamp: int
    key: bytes
    value: bytes
    headers: Sequence[Any] = ()


class Output(NamedTuple):
    """A record that was committed."""

    topic: str
    key: bytes
    value: bytes
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.value)


class Committed:
    """What a broker would hold of one partition: it survives a crash."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[bytes, bytes]] = {}
        self.outputs: list[Output] = []
        self.positions: dict[str, int] = {}
        self.watermark = -1
        self.versions: dict[str, int] = {}
        self.erased = ""
        self.inputs: defaultdict[str, list[Input]] = defaultdict(list)


class Partition:
    """Feeds records to an agent in batches of any size, commits when told to, and crashes when told to."""

    number = itertools.count()

    def __init__(
        self,
        agents: Sequence[Agent[Any]],
        tables: Sequence[Table[Any, Any]],
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        *,
        lateness: timedelta = timedelta(0),
    ) -> None:
        self.agents = {agent.topic.name: agent for agent in agents}
        self.committed = Committed()
        self._folder = folder
        self._tables = {table.name: table for table in tables}
        self._settings = Settings(allowed_lateness=lateness)
        monkeypatch.setattr(task_module, "Changelog", _Changelog)

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def send(self, events: Sequence[Any], topic: str = "", batch: int = 1000) -> None:
        """Publishes events (structs with a session), and has them worked on, so many in a batch."""
        self.publish(events, topic)
        while await self.read(batch, topic):
            pass

    def publish(self, events: Sequence[Any], topic: str = "") -> None:
        """Puts events behind the records that are there. topic: by default the first agent's."""
        inputs = self.committed.inputs[topic or next(iter(self.agents))]
        for event in events:
            inputs.append(Input(len(inputs), 0, event.session.encode(), msgspec.json.encode(event)))

    async def read(self, batch: int, topic: str = "") -> bool:
        """Has the next so many records worked on; whether there were any."""
        topic = topic or next(iter(self.agents))
        start = self.task.next_offset(topic)
        records = self.committed.inputs[topic][start : start + batch]
        if records:
            feed = self._feeds[topic]
            feed.idle.clear()
            feed.queue.put_nowait(self.task.accept(topic, cast(Any, records)))
            await feed.until_idle()
            assert self.task.open, self.task.reason
        return bool(records)

    def commit(self) -> None:
        """What is finished survives from now on."""
        if self.task.idle:
            return
        taken = self.task.take(cast(Any, None))
        for table, items in taken.changes.items():
            values = self.committed.tables.setdefault(table, {})
            for key, value in items:
                if value is None:
                    values.pop(key, None)
                else:
                    values[key] = value
        self.committed.positions = dict(taken.positions)
        self.committed.watermark = taken.watermark
        self.committed.versions = dict(self.task._changelog.versions)
        self.committed.erased = self.task._changelog.erased
        for target, batches in taken.outputs.items():
            for one in batches:
                self.committed.outputs += [Output(target.topic, *record) for record in one.records]
        self.task.committed_to(taken, {})

    async def crash(self) -> None:
        """Everything but what is committed is gone."""
        await self._close()
        await self._open()

    async def release(self, agents: Sequence[Agent[Any]], tables: Sequence[Table[Any, Any]]) -> None:
        """Another release of the application has the partition from now on."""
        await self._close()
        self.agents = {agent.topic.name: agent for agent in agents}
        self._tables = {table.name: table for table in tables}
        await self._open()

    @property
    def closed(self) -> bool:
        """Whether the release refuses to open it."""
        return not self.task.open and "a newer release" in self.task.reason

    def outputs(self, topic: str) -> list[Output]:
        """What was committed to a topic."""
        return [output for output in self.committed.outputs if output.topic == topic]

    async def _open(self) -> None:
        engine = self._engine()
        self.task = PartitionTask(engine, 0, self.agents)
        engine.tasks[0] = self.task
        self._feeds = {topic: _Feed(agent, engine) for topic, agent in self.agents.items()}
        async with asyncio.timeout(10):
            while not (self.task.open or self.closed):
                await asyncio.sleep(0)

    async def _close(self) -> None:
        for feed in self._feeds.values():
            feed.runner.cancel()
            await asyncio.wait([feed.runner])
        await self.task.close()

    def _engine(self) -> Engine:
        async def producer() -> Any:
            return SimpleNamespace(new_builder=_Batch)

        async def seek(positions: Mapping[TopicPartition, int]) -> None:
            pass

        def fatal(error: BaseException) -> None:
            raise error

        ready = asyncio.Event()
        ready.set()
        return cast(
            Engine,
            SimpleNamespace(
                settings=self._settings,
                tables=self._tables,
                tasks={},
                folder=self._folder / str(next(self.number)),
                memory=RocksMemory(),
                watches=Watches(),
                meters=Meters(),
                traces=None,
                connection=SimpleNamespace(transactional=False, committed=self.committed),
                committer=SimpleNamespace(producer=producer, failed=None, wake=lambda: None, lock=asyncio.Lock()),
                exactly_once=True,
                has_early=False,
                outputs=frozenset(
                    topic.name
                    for topic in (*ALL, *(topic for agent in self.agents.values() for topic in agent.outputs))
                ),
                timed_sources={name for name, agent in self.agents.items() if agent.event_time},
                behind=lambda tp: self.task.next_offset(tp.topic) < len(self.committed.inputs[tp.topic]),
                topic_name=lambda topic: topic.name,
                ready=ready,
                wake=asyncio.Event(),
                seek=seek,
                seek_now=lambda tp, offset: None,
                begins=lambda tp: 0,
                fatal=fatal,
            ),
        )


class _Feed:
    """An agent at work, and what it gets."""

    def __init__(self, agent: Agent[Any], engine: Engine) -> None:
        self.queue: asyncio.Queue[list[Slice[Any]]] = asyncio.Queue()
        self.idle = asyncio.Event()
        self.runner = asyncio.create_task(agent.run(engine, self._polls()))

    async def _polls(self) -> AsyncIterator[list[Slice[Any]]]:
        while True:
            self.idle.set()
            yield await self.queue.get()

    async def until_idle(self) -> None:
        """Returns when the agent asks for more."""
        waiting = asyncio.create_task(self.idle.wait())
        await asyncio.wait([waiting, self.runner], return_when=asyncio.FIRST_COMPLETED, timeout=10)
        if self.runner.done():
            self.runner.result()


class _Batch:
    """A record batch under way."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes, dict[str, str]]] = []
        self._builder = self
        self._relative_offset = 0

    def record_count(self) -> int:
        return len(self.records)

    def append(self, place: int, now: int, key: bytes, value: bytes, headers: Any) -> Any:
        self.records.append((key, value, {name: (raw or b"").decode() for name, raw in headers}))
        return self


class _Changelog:
    """The changelogs of what is committed."""

    def __init__(self, connection: Any, partition: int, tables: list[str]) -> None:
        self._committed: Committed = connection.committed
        self._tables = tables
        self.versions = dict(self._committed.versions)
        self.erased = self._committed.erased
        self.format = FORMAT
        self.orphans: dict[str, set[bytes]] = {}

    async def replay(self, store: PartitionStore) -> int:
        tables: dict[str, Mapping[bytes, bytes | None]] = {
            name: values for name, values in self._committed.tables.items() if name in self._tables
        }
        store.write(tables, self.meta(self._committed.positions, self._committed.watermark))
        return sum(map(len, tables.values()))

    def records(self, producer: Any, changes: Mapping[str, Items]) -> Builders:
        return {}

    def meta(self, positions: Mapping[str, int], watermark: int) -> Meta:
        return Meta("one", dict(positions), {}, watermark, self.erased)

    def note(self, ends: Mapping[TopicPartition, int]) -> None:
        pass
