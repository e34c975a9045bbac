"""An application as it runs: `faust -A APP worker`, a process of its own on a real broker."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
import time
import uuid
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from pydantic import SecretStr

from core.errors import TrialError, UsageError
from core.topics import ALERTS, CONTROL, DEPLOYMENTS, TopicSpec, changelog
from engine import bulk
from engine.admin import TopicAdmin
from engine.changelog import FETCH, POSITIONS, Changelog, changelog_reader, fetches
from engine.connection import connect
from engine.embedded import HOST, EmbeddedBroker
from engine.store import PartitionStore, RocksMemory
from engine.table import RESERVED, Shard, Table
from engine.testing.trial import SETTLE_S, Trial, Written, encoded, given, timestamp
from engine.timed import Time, TimedTable

E = TypeVar("E")

ROOT: Final = Path(__file__).resolve().parents[2]
START_S: Final = 60.0
"""Seconds until a worker has made its topics."""
STOP_S: Final = 10.0
LOOK_S: Final = 0.05
"""Seconds between two looks at what is committed."""
SESSION_S: Final = 6
"""Kafka's shortest: the group waits that long for a worker that was killed, unless it comes back under its name."""
TAIL: Final = 3000
"""Characters of the worker's log that an error shows."""


class OnBroker(Trial):
    """One worker. It decides about batches and commits, and crash() is a SIGKILL. Its topics have a prefix of their
    own, and are deleted at the end."""

    def __init__(self, broker: str, app: str, settings: Mapping[str, Any]) -> None:
        prefix = f"trial-{uuid.uuid4().hex[:10]}-"
        own = {
            "broker": broker,
            "topic_prefix": prefix,
            "app_id": f"{prefix}app",
            "worker_id": "trial",
            "data_dir": Path(),
        }
        if said := own.keys() & settings:
            raise UsageError(f"{', '.join(sorted(said))}: the trial has its own, so that it touches nobody else's")
        self._values: dict[str, Any] = {
            "session_timeout": SESSION_S,
            "partitions": 1,
            **settings,
            **own,
        }
        self._app = app
        self.settings = given(self._values)
        self._process: Process | None = None
        self._stores: dict[int, PartitionStore] = {}
        self._ends: dict[TopicPartition, int] = {}
        """Behind the last record that was sent."""
        self._read: dict[TopicPartition, list[Written]] = {}
        self._next: dict[TopicPartition, int] = {}

    async def __aenter__(self) -> Self:
        bulk.install()
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="homunculus-trial-"))
            self._folder = Path(folder)
            self._values["data_dir"] = self._folder / "data"
            if self.settings.embedded:
                broker = EmbeddedBroker(_free_port())
                stack.push_async_callback(broker.stop)
                await broker.start()
                self._values["broker"] = f"kafka://{broker.bootstrap}"
                self.settings = self.settings.model_copy(update={"broker": self._values["broker"]})
            self._connection = await connect(self.settings, self.settings.broker)
            stack.push_async_callback(self._delete_topics)
            stack.push_async_callback(self._stop)
            await self._start()
            await self._until_topics()
            self._producer = await self._connected(stack)
            self._reader = await stack.enter_async_context(changelog_reader(self._connection, FETCH))
            options = self._connection.options
            self._raw = AIOKafkaConsumer(**options, isolation_level="read_uncommitted", enable_auto_commit=False)
            stack.push_async_callback(self._raw.stop)
            await self._raw.start()
            stack.callback(self._close_stores)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def send(
        self,
        topic: TopicSpec[E],
        events: Iterable[E | bytes],
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        at: datetime | None = None,
    ) -> None:
        """Returns when the broker has them; the worker works on them by itself."""
        name = self.settings.topic_prefix + topic.name
        if name not in self._topics:
            raise UsageError(f"{self._app} has no topic {topic.name}: its module must import the agent that reads it")
        tags = [(tag, text.encode()) for tag, text in (headers or {}).items()]
        sent = [
            await self._producer.send(name, value, key=raw_key, headers=tags, timestamp_ms=timestamp(at))
            for raw_key, value in encoded(topic, events, key)
        ]
        for record in await asyncio.gather(*sent):
            tp = TopicPartition(name, record.partition)
            self._ends[tp] = max(record.offset + 1, self._ends.get(tp, 0))

    async def settle(self, within_s: float = SETTLE_S) -> None:
        """Waits until the markers of commits stand behind all that was sent, and reads what is committed."""
        until = time.monotonic() + within_s
        while behind := await self._behind() or await self._undecided():
            self._check()
            if time.monotonic() > until:
                raise TrialError(
                    f"not all that was sent is committed within {within_s:g} s: {', '.join(behind)}\n{self._tail()}"
                )
            await asyncio.sleep(LOOK_S)
        await self._behind()  # once more: a marker may be seen before the rest of its transaction
        await self._read_topics()

    async def crash(self) -> None:
        """SIGKILL, and a new start."""
        self._check()
        assert self._process is not None
        self._process.kill()
        await self._process.wait()
        await self._start()

    async def deploy(self, model: str, version: str) -> None:
        """Asks for it on control, and waits for the answer."""
        await self.send(CONTROL, [b'{"active": "%s"}' % version.encode()], key=model)
        await self.settle()
        accepted = [one.value.active for one in self.outputs(DEPLOYMENTS) if one.key == model]
        if accepted[-1:] != [version]:
            told = [one.value.title for one in self.outputs(ALERTS) if one.key == model]
            raise TrialError(f"{model}@{version} does not go live: {'; '.join(told[-1:]) or 'nobody said why'}")

    # -- what is committed --------------------------------------------------------------------------------------------

    def _records(self, topic: TopicSpec[Any], partition: int) -> Iterable[Written]:
        return self._read.get(TopicPartition(self.settings.topic_prefix + topic.name, partition), [])

    def _stored(self, table: Table[Any, Any], partition: int) -> Mapping[bytes, bytes]:
        if table.name not in self._tables:
            raise UsageError(f"{self._app} has no table {table.name}: its module must import it")
        store = self._stores.get(partition)
        return {} if store is None else dict(store.scan(table.name))

    def _shard(self, table: Table[Any, Any], partition: int) -> Shard:
        return table.copied(self._stores[partition])

    async def _behind(self) -> list[str]:
        """Brings our copy of the tables up to date; tells where the commits it stands for haven't come far enough."""
        behind = []
        for partition in range(self.settings.partitions):
            if partition not in self._stores:
                path = self._folder / "read" / str(partition)
                self._stores[partition] = await asyncio.to_thread(PartitionStore, path, self._tables, RocksMemory())
            store = self._stores[partition]
            await Changelog(self._connection, partition, self._tables).catch_up(self._reader, store)
            behind += [
                f"{tp.topic}/{partition} at {store.meta.positions.get(tp.topic, 0)} of {end}"
                for tp, end in self._ends.items()
                if tp.partition == partition and store.meta.positions.get(tp.topic, 0) < end
            ]
            behind += [f"something is due in {name}/{partition}" for name in self._tables if _overdue(name, store)]
        return behind

    async def _undecided(self) -> list[str]:
        """Topics in which a transaction is open: its other half may be seen already."""
        if not self._connection.transactional:
            return []
        tps = self._partitions(self._topics)
        for consumer in (self._reader, self._raw):
            consumer.assign(tps)
            consumer.pause(*tps)
        stable, written = await self._reader.end_offsets(tps), await self._raw.end_offsets(tps)
        return [f"a transaction is open in {tp.topic}/{tp.partition}" for tp in tps if stable[tp] < written[tp]]

    def _partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        return [TopicPartition(name, n) for name in sorted(topics) for n in range(self.settings.partitions)]

    async def _read_topics(self) -> None:
        tps = self._partitions(self._topics - self._changelogs)
        self._reader.assign(tps)
        self._reader.pause(*tps)
        for tp in tps:
            start = self._next.get(tp, 0)
            records = self._read.setdefault(tp, [])
            async for batches in fetches(self._connection, self._reader, tp, start):
                for batch in batches:
                    records += [
                        Written(one.offset, one.timestamp, one.key, one.value, one.headers)
                        for one in batch
                        if one.offset >= start
                    ]
                    self._next[tp] = batch.next_offset

    # -- the worker ---------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        taken = ("HOMUNCULUS_", "FAUST_")
        environment = {name: text for name, text in os.environ.items() if not name.startswith(taken)}
        environment |= {f"HOMUNCULUS_{name.upper()}": _as_text(name, value) for name, value in self._values.items()}
        paths = [str(Path.cwd()), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "faust", "-A", self._app, "worker", "--without-web"),
                cwd=self._folder,  # where no .env is
                env=environment | {"PYTHONPATH": os.pathsep.join(paths)},
                stdin=DEVNULL,
                stdout=log,
                stderr=STDOUT,
                start_new_session=True,  # ^C is the test's to answer
            )

    async def _until_topics(self) -> None:
        """Waits until the worker has made its topics, and notes which there are."""
        prefix, app_id = self.settings.topic_prefix, self.settings.app_id
        until = time.monotonic() + START_S
        async with TopicAdmin(self._connection.bootstrap, self._connection.security) as admin:
            while True:
                shapes = {name: shape for name, shape in (await admin.shapes()).items() if name.startswith(prefix)}
                markers = shapes.get(prefix + changelog(app_id, POSITIONS).name)
                if markers is not None and all(shape.ready for shape in shapes.values()):
                    break
                self._check()
                if time.monotonic() > until:
                    raise TrialError(f"the worker has made no topics within {START_S:g} s\n{self._tail()}")
                await asyncio.sleep(LOOK_S)
        self._topics = set(shapes)
        of_tables = {name: prefix + changelog(app_id, name).name for name in (*Table.declared, POSITIONS)}
        self._tables = [name for name in Table.declared if of_tables[name] in shapes]
        self._changelogs = {name for name in shapes if name.startswith(f"{prefix}{app_id}-")}

    async def _connected(self, stack: AsyncExitStack) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            **self._connection.options,
            acks="all",
            enable_idempotence=self._connection.idempotent,
            max_request_size=2 * self.settings.max_record,
        )
        stack.push_async_callback(producer.stop)
        await producer.start()
        return producer

    async def _stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _delete_topics(self) -> None:
        with suppress(KafkaError, TimeoutError):
            async with TopicAdmin(self._connection.bootstrap, self._connection.security) as admin:
                ours = [name for name in await admin.shapes() if name.startswith(self.settings.topic_prefix)]
                await admin.client.delete_topics(ours)

    def _close_stores(self) -> None:
        for store in self._stores.values():
            store.close()

    def _check(self) -> None:
        if self._process is not None and self._process.returncode is not None:
            raise TrialError(f"the worker has ended with status {self._process.returncode}\n{self._tail()}")

    @property
    def _log(self) -> Path:
        return self._folder / "worker.log"

    def _tail(self) -> str:
        """The last lines of the worker's log."""
        text = self._log.read_text("utf-8", "replace")
        return text if len(text) <= TAIL else f"...{text[-TAIL:]}"


def on_broker(broker: str, app: str, **settings: Any) -> OnBroker:
    """The application that `faust -A APP worker` starts from the current folder.

    broker: kafka://host:port, or `embedded` for one that comes and goes with the trial. settings: those of HOMUNCULUS_*
    in lower case, for the worker; partitions is 1 by default.
    """
    return OnBroker(broker, app, settings)


def _overdue(name: str, store: PartitionStore) -> bool:
    """Whether a table has values whose time has come: they are about to fire."""
    table = Table.declared[name]
    if not isinstance(table, TimedTable):
        return False
    limit = store.meta.watermark if table.time is Time.EVENT else int(time.time() * 1e3)
    values = (table.decode(raw, key) for key, raw in store.scan(name) if not key.startswith(RESERVED))
    return any(table.due(value) <= limit for value in values)


def _as_text(name: str, value: Any) -> str:
    """A setting as a variable of the environment holds it; the worker's folder is another one than the test's."""
    if isinstance(value, Path) or (name == "model_store" and "://" not in value):
        return str(Path(value).absolute())
    if isinstance(value, timedelta):
        return str(value.total_seconds())
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
