"""The server over real HTTP: its rules, its routes, its neighbours, and its end."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import pytest
from aiohttp import ClientSession, web
from yarl import URL

from core.errors import SettingsError, UsageError
from core.settings import Settings
from engine.app import App
from engine.publisher import partition_of
from engine.store import PartitionStore, RocksMemory
from engine.table import KeyValueShard, Table
from models.device import Device
from models.inference import InferenceThread
from models.live import LiveModels
from models.store import ModelStore
from tests.kafka import free_port
from web import server as subject
from web.connections import Connections
from web.server import WebServer, serve

PARTITIONS = 4


class Notes(Table[str, str]):
    """name -> a note. Put by the tests."""

    name = "notes"


class OpenTask:
    """A partition's part of the table, as an open task has it: real storage, no broker."""

    def __init__(self, folder: Path, partition: int) -> None:
        self.open, self.reason, self.partition = True, "", partition
        self.store = PartitionStore(folder / str(partition), ["notes"], RocksMemory())
        self._shard = KeyValueShard("notes", self.store)

    def shard(self, table: str) -> KeyValueShard:
        assert table == "notes"
        return self._shard


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
        self.app.engine.tables = {"notes": Table.declared["notes"]}
        self.folder = folder
        self.server: WebServer | None = None
        self.client = ClientSession(f"http://127.0.0.1:{given.web_port}")

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

    def put(self, key: str, value: str) -> None:
        raw, notes = key.encode(), Table.declared["notes"]
        task = self.app.engine.tasks[partition_of(raw, PARTITIONS)]
        task.shard("notes").absorb([(raw, notes.encode(value))])

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
        for task in self.app.engine.tasks.values():
            cast(Any, task).store.close()


Start = Callable[..., Awaitable[Worker]]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[..., Worker]]:
    """Makes workers that are not started yet, and ends them."""
    workers: list[Worker] = []
    Notes()

    def build(**settings: Any) -> Worker:
        workers.append(Worker(tmp_path / str(len(workers)), **settings))
        return workers[-1]

    yield build
    for worker in workers:
        await worker.close()
    del Table.declared["notes"]


@pytest.fixture
def start(make: Callable[..., Worker]) -> Start:
    """Makes and starts workers."""

    async def started(**settings: Any) -> Worker:
        return await make(**settings).start()

    return started


# -- where it listens ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bind", ["0.0.0.0", "", "::"])
async def test_whatever_led_to_an_open_address_without_a_token_it_never_listens(
    make: Callable[..., Worker], bind: str
) -> None:
    worker = make()
    worker.app.conf.web_bind = bind  # as Faust's command line or environment would
    with pytest.raises(SettingsError, match="HOMUNCULUS_WEB_TOKEN"):
        await worker.start()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", worker.app.settings.web_port)) != 0


async def test_an_open_address_is_told_to_the_group_by_a_name_that_others_can_use(make: Callable[..., Worker]) -> None:
    worker = make(web_bind="0.0.0.0", web_token="all")
    await worker.start()
    assert worker.app.conf.canonical_url.host == socket.gethostname()
    assert worker.app.conf.canonical_url.port == worker.app.settings.web_port


async def test_a_taken_port_is_an_error_that_names_it(start: Start, make: Callable[..., Worker]) -> None:
    first = await start()
    second = make(web_port=first.app.settings.web_port)
    with pytest.raises(SettingsError, match=rf"port {first.app.settings.web_port}.*--web-port"):
        await second.start()


async def test_an_address_of_another_machine_is_an_error_that_names_it(make: Callable[..., Worker]) -> None:
    with pytest.raises(SettingsError, match=r"192\.0\.2\.1"):
        await make(web_bind="192.0.2.1", web_token="all").start()


async def test_another_transport_than_tcp_is_refused(make: Callable[..., Worker], tmp_path: Path) -> None:
    worker = make()
    worker.app.conf.web_transport = URL(f"unix://{tmp_path}/socket")
    with pytest.raises(SettingsError, match="--web-transport"):
        await worker.start()


# -- what it says --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/health/live", 200),
        ("GET", "/health/ready", 503),
        ("GET", "/tables", 200),
        ("GET", "/models", 200),
        ("GET", "/nothing/here", 404),
        ("DELETE", "/tables", 405),
        ("POST", "/models/churn", 400),
    ],
)
async def test_every_answer_carries_the_security_headers(start: Start, method: str, path: str, status: int) -> None:
    worker = await start()
    async with worker.client.request(method, path) as answer:
        assert answer.status == status
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "aiohttp" not in answer.headers["Server"].lower()


@pytest.mark.parametrize(
    "path",
    ["/router/", "/router/notes/", "/table/", "/tables/notes/x/y", "/stats/", "/assignment/", "/graph/", "/metrics"],
)
async def test_fausts_own_routes_are_not_served(start: Start, path: str) -> None:
    status, _ = await (await start()).get(path)
    assert status == 404


async def test_without_the_token_the_answer_says_what_to_send_and_nothing_else(start: Start) -> None:
    worker = await start(web_token="all")
    async with worker.client.get("/tables/notes/secret-key") as answer:
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        text = await answer.text()
    assert "HOMUNCULUS_WEB_TOKEN" in text
    assert "secret-key" not in text


async def test_a_fault_of_ours_is_told_without_its_words(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker = (await start()).own(0, 1, 2, 3)
    worker.put("k", "v")
    monkeypatch.setattr(Notes, "describe", lambda *_: (_ for _ in ()).throw(ValueError("the payload")))
    status, body = await worker.get("/tables/notes/k")
    assert status == 500
    assert "payload" not in str(body)
    assert "the payload" in caplog.text


async def test_a_large_body_is_refused(start: Start) -> None:
    worker = await start()
    async with worker.client.post("/models/churn", json={"reason": "x" * 100_000}) as answer:
        assert answer.status == 413


@pytest.mark.parametrize(
    ("name", "body", "kind", "names"),
    [
        ("churn", b"{", "application/json", "JSON"),
        ("churn", b"\xff", "application/json", "JSON"),
        ("churn", b"[" * 30_000, "application/json", "JSON"),
        ("churn", b"[]", "application/json", "body"),
        ("churn", b'{"active": "../../x"}', "application/json", "active"),
        ("churn", b'{"action": "explode"}', "application/json", "action"),
        ("churn", b'{"active": "2"}', "text/plain", "application/json"),
        ("..%2fchurn", b'{"active": "2"}', "application/json", "pattern"),
    ],
)
async def test_a_control_request_that_makes_no_sense_is_never_published(
    start: Start, name: str, body: bytes, kind: str, names: str
) -> None:
    worker = await start()
    url = URL(f"/models/{name}", encoded=True)
    async with worker.client.post(url, data=body, headers={"Content-Type": kind}) as answer:
        assert answer.status == 400
        assert names in await answer.text()


async def test_a_good_control_request_before_the_broker_is_there_is_asked_for_again(start: Start) -> None:
    worker = await start()
    async with worker.client.post("/models/churn", json={"active": "2"}) as answer:
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "1"


# -- health --------------------------------------------------------------------------------------------------------


async def test_ready_says_what_is_missing_in_words(start: Start) -> None:
    worker = await start()
    status, body = await worker.get("/health/ready")
    assert status == 503
    assert body["ready"] is False
    assert any("deployments" in reason for reason in body["reasons"])
    assert any("broker" in reason for reason in body["reasons"])

    worker.app.engine.ready.set()
    worker.app.engine.consumer = cast(Any, object())
    _, body = await worker.get("/health/ready")
    assert any("publish" in reason and "control" in reason for reason in body["reasons"])
    assert any("group" in reason for reason in body["reasons"])

    worker.own(2)
    worker.app.engine.tasks[2].open = False
    worker.app.engine.tasks[2].reason = "restoring its tables"
    _, body = await worker.get("/health/ready")
    assert "partition 2 is not open: restoring its tables" in body["reasons"]


async def test_a_worker_that_is_ending_is_neither_alive_nor_ready(start: Start) -> None:
    worker = await start()
    worker.app.engine.dying = RuntimeError("the password is hush")
    for path in ("/health/live", "/health/ready"):
        status, body = await worker.get(path)
        assert status == 503
        assert "RuntimeError" in str(body)
        assert "hush" not in str(body)


# -- tables --------------------------------------------------------------------------------------------------------

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
]


async def test_a_value_is_found_under_any_key(start: Start) -> None:
    worker = (await start()).own(0, 1, 2, 3)
    chance = random.Random(7)
    keys = [
        *NASTY,
        *("".join(chr(chance.randint(1, 0x2FFF)) for _ in range(chance.randint(1, 12))) for _ in range(200)),
    ]
    for key in keys:
        worker.put(key, f"value of {key}")
    for key in keys:
        assert await worker.get(f"/tables/notes/{quote(key, safe='')}") == (200, f"value of {key}"), key


async def test_an_unknown_table_or_key_is_404_and_not_repeated(start: Start) -> None:
    worker = (await start()).own(0, 1, 2, 3)
    for path in ("/tables/secret/secret", "/tables/secret", "/tables/notes/secret", "/tables/notes/%FF%00"):
        status, body = await worker.get(path)
        assert status in {404, 400}, path
        assert "secret" not in str(body)


async def test_a_key_that_is_no_text_is_malformed(start: Start) -> None:
    worker = (await start()).own(0, 1, 2, 3)
    status, _ = await worker.get("/tables/notes/%FF")
    assert status == 400


async def test_while_the_partition_opens_the_reader_is_asked_to_come_again(start: Start) -> None:
    worker = (await start()).own(0, 1, 2, 3)
    for task in worker.app.engine.tasks.values():
        task.open, task.reason = False, "restoring its tables"
    async with worker.client.get("/tables/notes/k") as answer:
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "1"
        assert "restoring its tables" in await answer.text()


async def test_pages_give_every_value_of_this_worker_once_in_order(start: Start) -> None:
    worker = (await start()).own(0, 1, 2, 3)
    for number in range(57):
        worker.put(f"b{number:02}", str(number))
    worker.put("a", "before")
    worker.put("c", "after")
    seen: list[str] = []
    path = "/tables/notes?prefix=b&limit=10"
    while path:
        status, body = await worker.get(path)
        assert status == 200
        seen += [item["key"] for item in body["items"]]
        path = f"/tables/notes?prefix=b&limit=10&after={body['next']}" if body["next"] else ""
    assert seen == [f"b{number:02}" for number in range(57)]


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "x", "1e3", "9" * 30, ""])
async def test_a_page_has_a_bound(start: Start, limit: str) -> None:
    status, body = await (await start()).get(f"/tables/notes?limit={limit}")
    assert status == 400
    assert "1000" in body["message"]


async def test_the_list_of_tables_says_which_partitions_are_here(start: Start) -> None:
    worker = (await start()).own(1, 3)
    worker.app.engine.tasks[3].open, worker.app.engine.tasks[3].reason = False, "opening"
    _, body = await worker.get("/tables")
    assert body["partitions"] == {"count": PARTITIONS, "open": [1], "opening": {"3": "opening"}}
    assert [table["name"] for table in body["tables"]] == ["notes"]


# -- neighbours ----------------------------------------------------------------------------------------------------


def assign(*workers: Worker) -> None:
    """Tells each what the group's leader would."""
    told = {w.url: {"observations": sorted(w.app.engine.tasks)} for w in workers}
    for worker in workers:
        cast(Any, worker.app.assignor).external_topic_distribution = told


async def test_any_worker_answers_for_any_key(start: Start) -> None:
    first, second = (await start(web_token="all")).own(0, 2), (await start(web_token="all")).own(1, 3)
    assign(first, second)
    keys = [*NASTY, *(f"k{number}" for number in range(40))]
    for key in keys:
        owner = first if partition_of(key.encode(), PARTITIONS) in first.app.engine.tasks else second
        owner.put(key, key)
    for worker in (first, second):
        for key in keys:
            path = f"/tables/notes/{quote(key, safe='')}"
            assert await worker.get(path, Authorization="Bearer all") == (200, key)
            assert (await worker.get(path))[0] == 401
        assert (await worker.get("/tables/notes/unknown", Authorization="Bearer all"))[0] == 404


async def test_a_key_whose_owner_nobody_knows_is_asked_for_again(start: Start) -> None:
    worker = (await start()).own(*(n for n in range(PARTITIONS) if n != partition_of(b"k", PARTITIONS)))
    assign(worker)
    async with worker.client.get("/tables/notes/k") as answer:
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "1"


async def test_two_workers_that_take_each_other_for_the_owner_pass_a_request_on_once(start: Start) -> None:
    first, second = await start(), await start()
    for worker, other in ((first, second), (second, first)):
        told = {other.url: {"observations": list(range(PARTITIONS))}}
        cast(Any, worker.app.assignor).external_topic_distribution = told
    status, _ = await asyncio.wait_for(first.get("/tables/notes/k"), 5)
    assert status == 503


async def test_an_owner_that_does_not_answer_is_named_with_what_may_be_wrong(start: Start) -> None:
    worker = await start()
    told = {f"http://127.0.0.1:{free_port()}": {"observations": list(range(PARTITIONS))}}
    cast(Any, worker.app.assignor).external_topic_distribution = told
    status, body = await worker.get("/tables/notes/k")
    assert status == 502
    assert "--web-host" in body["message"]


# -- the application's own pages -----------------------------------------------------------------------------------


async def test_a_page_of_fausts_is_served_behind_the_token(make: Callable[..., Worker]) -> None:
    worker = make(web_token="all")

    @worker.app.page("/hello/{name}")
    async def hello(view: Any, request: Any, name: str) -> Any:
        return view.json({"hello": name})

    await worker.start()
    assert (await worker.get("/hello/you"))[0] == 401
    assert await worker.get("/hello/you", Authorization="Bearer all") == (200, {"hello": "you"})


@pytest.mark.parametrize("path", ["/health%2Flive", "/%2Fhealth%2Flive", "/health/%6cive", "/health/live%2F"])
async def test_no_spelling_of_a_path_opens_a_page(make: Callable[..., Worker], path: str) -> None:
    worker = make(web_token="all")

    @worker.app.page("/{anything}")
    async def anything(view: Any, request: Any, anything: str) -> Any:
        return view.json({"secret": anything})

    await worker.start()
    async with worker.client.get(URL(path, encoded=True)) as answer:
        assert answer.status == 401 or (await answer.json()) == {"live": True}


async def test_a_page_at_a_path_of_ours_is_refused(make: Callable[..., Worker]) -> None:
    worker = make()

    @worker.app.page("/tables")
    async def tables(view: Any, request: Any) -> Any:
        return view.json({})

    with pytest.raises(UsageError, match="/tables"):
        await worker.start()


# -- patience and the end ------------------------------------------------------------------------------------------


async def test_an_answer_that_takes_too_long_is_given_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = (await start()).own(0, 1, 2, 3)
    monkeypatch.setattr(subject, "HANDLE_S", 0.05)
    reader = worker.client.post(
        "/models/churn", data=_drip(), headers={"Content-Type": "application/json", "Content-Length": "50"}
    )
    async with reader as answer:
        assert answer.status == 504


async def _drip() -> AsyncIterator[bytes]:
    yield b'{"active"'
    await asyncio.Event().wait()


async def test_a_request_under_way_does_not_hold_up_the_end(make: Callable[..., Worker]) -> None:
    worker = make()
    entered = asyncio.Event()

    @worker.app.page("/slow")
    async def slow(view: Any, request: Any) -> Any:
        entered.set()
        await asyncio.Event().wait()

    await worker.start()
    asking = asyncio.create_task(worker.get("/slow"))
    await entered.wait()
    began = time.monotonic()
    assert worker.server is not None
    await worker.server.stop()
    assert time.monotonic() - began < 2.0
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", worker.app.settings.web_port)) != 0


class Line:
    """A connection that remembers whether it was closed."""

    def __init__(self) -> None:
        self.closed = False

    def force_close(self) -> None:
        self.closed = True


class Lines:
    """A server's open connections."""

    def __init__(self, count: int) -> None:
        self.connections = [Line() for _ in range(count)]


def test_a_silent_connection_is_let_go_and_a_busy_one_never(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, connections = Lines(3), Connections()
    silent, busy, used = lines.connections
    with connections.busy(busy):
        connections.look(cast(web.Server, lines), now=0.0)
        with connections.busy(used):
            pass
        connections.look(cast(web.Server, lines), now=time.monotonic())
        assert [line.closed for line in (silent, busy, used)] == [True, False, False]
        connections.look(cast(web.Server, lines), now=time.monotonic() + 3600)
        assert [line.closed for line in (silent, busy, used)] == [True, False, True]


def test_too_many_connections_cost_the_longest_silent_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.connections.MOST", 2)
    lines, connections = Lines(4), Connections()
    with connections.busy(lines.connections[3]):
        connections.look(cast(web.Server, lines), now=0.0)
    assert [line.closed for line in lines.connections] == [True, True, False, False]
