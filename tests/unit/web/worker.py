"""A worker with its server over real HTTP and tables on real storage; no broker, no group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
from aiohttp import ClientSession, TCPConnector
from pydantic import BaseModel
from yarl import URL

from core.settings import Settings
from engine import tls
from engine.app import App
from engine.publisher import partition_of
from engine.store import PartitionStore, RocksMemory
from engine.table import KeyValueShard, Table
from models.device import Device
from models.inference import InferenceThread
from models.live import LiveModels
from models.store import ModelStore
from tables.drift import references, watches
from tests.kafka import free_port
from web.server import WebServer, serve

PARTITIONS = 4


class Notes(Table[str, str]):
    """name -> a note. Put by the tests."""

    name = "notes"


class Click(msgspec.Struct):
    """Something with a time."""

    ts: int
    where: str


class Clicks(Table[str, Click]):
    """session/click -> the click. Lives where its session does."""

    name = "clicks"
    separator = "/"


class Blobs(Table[bytes, bytes]):
    """any bytes -> any bytes."""

    name = "blobs"


class Profile(BaseModel):
    """As people write it."""

    since: int
    name: str | None = None


class Profiles(Table[str, Profile]):
    """session -> its profile."""

    name = "profiles"


TABLES = (Notes, Clicks, Blobs, Profiles)
NAMES = [table.name for table in TABLES]


class OpenTask:
    """A partition's part of the tables, as an open task has it: real storage, no broker."""

    def __init__(self, folder: Path, partition: int) -> None:
        self.open, self.reason, self.partition = True, "", partition
        self.topics: tuple[str, ...] = ()
        names = [*NAMES, references.name, watches.name]
        self.store = PartitionStore(folder / str(partition), names, RocksMemory())
        self._shards = {name: KeyValueShard(name, self.store) for name in names}

    def shard(self, table: str) -> KeyValueShard:
        return self._shards[table]


class Worker:
    """A worker's application and server, with the partitions that a test gives it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        values: dict[str, Any] = {
            "web_port": free_port(),
            "partitions": PARTITIONS,
            "broker": "kafka://127.0.0.1:9",
            "data_dir": folder,
        }
        given = Settings(**values | {"model_store": str(folder / "store")} | settings)
        models = LiveModels(ModelStore(given.model_store), Device.of("cpu"), InferenceThread())
        self.app = App(given, models, [], [])
        self.app.engine.sources.add("observations")
        self.app.engine.tables = {name: Table.declared[name] for name in NAMES}
        self.folder = folder
        self.server: WebServer | None = None
        host = "[::1]" if str(given.web_bind) == "::1" else "127.0.0.1"
        scheme = "http" if given.web_cert is None else "https"
        self.client = ClientSession(
            f"{scheme}://{host}:{given.web_port}", connector=TCPConnector(ssl=tls.trusted(given))
        )

    async def start(self) -> Worker:
        self.server = serve(self.app)
        await self.server.maybe_start()
        return self

    def own(self, *partitions: int) -> Worker:
        """Opens partitions, as an assignment does."""
        for number in partitions:
            self.app.engine.tasks[number] = cast(Any, OpenTask(self.folder / "data", number))
        self.app.consumer_generation_id = 1
        return self

    def put(self, key: str | bytes, value: Any, table: str = "notes", session: str | None = None) -> None:
        """Commits a value. session: where it isn't the key."""
        raw = key if isinstance(key, bytes) else key.encode()
        self._commit(table, raw, Table.declared[table].encode(value), raw if session is None else session.encode())

    def delete(self, key: str) -> None:
        """Commits the end of a note."""
        self._commit("notes", key.encode(), None, key.encode())

    def _commit(self, table: str, key: bytes, raw: bytes | None, session: bytes) -> None:
        partition = partition_of(session, PARTITIONS)
        self.app.engine.tasks[partition].shard(table).absorb([(key, raw)])
        self.app.engine.watches.committed(partition, {table: [(key, raw)]})

    def work(self, events: int) -> None:
        """Counts events as committed, each within 20 ms."""
        self.app.engine.meters.committed["observations"] += events
        self.app.engine.meters.latency.observe(0.02, events)

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self.client.get(URL(path, encoded=True), headers=headers) as answer:
            return answer.status, await answer.json()

    @property
    def url(self) -> str:
        return str(self.app.conf.canonical_url)

    async def close(self) -> None:
        await self.client.close()
        if self.server is not None:
            await self.server.stop()
        while self.app.engine.tasks:
            cast(Any, self.app.engine.tasks.popitem()[1]).store.close()


Start = Callable[..., Awaitable[Worker]]
Make = Callable[..., Worker]


@asynccontextmanager
async def making(folder: Path) -> AsyncIterator[Make]:
    """Makes workers that are not started yet, and ends them."""
    workers: list[Worker] = []
    for table in TABLES:
        table()

    def build(**settings: Any) -> Worker:
        workers.append(Worker(folder / str(len(workers)), **settings))
        return workers[-1]

    try:
        yield build
    finally:
        for worker in workers:
            await worker.close()
        for name in NAMES:
            del Table.declared[name]


NASTY = [
    "a/b",
    "a%2Fb",
    "a%b",
    "%",
    "a?b=c",
    "a#b",
    "a b",
    "a+b",
    "é",
    "日本",
    "🜍",
    "a\nb",
    "a\0b",
    '"',
    "\\",
    "~",
    "...",
    "{a}",
]
