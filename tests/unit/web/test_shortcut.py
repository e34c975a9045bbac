"""The short way to a value says what the long one says, and changes nothing for those who come the long way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from aiohttp import web

from core.errors import UsageError
from engine.publisher import partition_of
from tests.unit.web.worker import NASTY, PARTITIONS, Make, Start, Worker
from web.server import WebServer
from web.shortcut import Shortcut


class Said(NamedTuple):
    """An answer as it stands on the wire, but for its date and the order of its headers."""

    status: str
    headers: dict[str, str]
    body: bytes


class Line:
    """A connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, target: str, *headers: str, method: str = "GET", version: str = "1.1") -> None:
        lines = [f"{method} {target} HTTP/{version}", *(headers or ["Host: 127.0.0.1"])]
        self.writer.write("\r\n".join([*lines, "", ""]).encode())

    async def read(self) -> Said:
        async with asyncio.timeout(5):
            status, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            if status.split()[1] == "100":
                return await self.read()
            headers = {name.lower(): text for name, _, text in (line.partition(": ") for line in lines)}
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        assert headers.pop("date").endswith(" GMT")
        assert len(headers) == len(lines) - 1
        return Said(status, headers, body)

    async def ask(self, target: str, *headers: str, **how: str) -> Said:
        self.send(target, *headers, **how)
        return await self.read()


@asynccontextmanager
async def connected(worker: Worker) -> AsyncIterator[Line]:
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.app.settings.web_port)
    try:
        yield Line(reader, writer)
    finally:
        writer.close()


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are answered the long way."""
    taken: list[str] = []
    answer = WebServer._answer

    async def noted(server: WebServer, request: web.BaseRequest, handler: Any) -> web.StreamResponse:
        taken.append(request.path)
        return await answer(server, request, handler)

    monkeypatch.setattr(WebServer, "_answer", noted)
    return taken


TARGETS = [
    *(f"/tables/notes/{quote(key, safe='')}" for key in NASTY),
    *(
        f"/tables/notes/{key}"
        for key in ["k", "big", "missing", ".", "..", "k/", "k//", "/k", "%ff", "%zz", "k;a=b", "k:@!$&'()*,"]
    ),
    *(
        f"/tables/notes/k{query}"
        for query in ["?", "?whole=1", "?session=k", "?session=", "?typo=1", "#part", "?#", "??"]
    ),
    "/tables/notes/big?whole=1",
    "/tables/blobs/%00%ff",
    "/tables/clicks/s%2Fc",
    "/tables/n%6ftes/k",
    "/tables/nothing/k",
    "/tables/notes/",
    "//tables/notes/k",
    "/tables//k",
    "/Tables/notes/k",
    "/tables/notes/k/watch/x",
    "http://127.0.0.1/tables/notes/k",
    "http://evil.example/tables/notes/k",
]
HEADERS = [
    ["Host: 127.0.0.1"],
    ["Host: evil.example"],
    ["Host: 127.0.0.1", "Authorization: Bearer read"],
    ["Host: evil.example", "authorization: bearer all"],
    ["Host: 127.0.0.1", "Authorization: Bearer wrong"],
    ["Host: 127.0.0.1", "Authorization: Bearer all", "Origin: https://evil.example", "If-None-Match: *"],
    [
        "Host: 127.0.0.1",
        "Authorization: Bearer all",
        'If-None-Match: "other"',
        "Accept-Encoding: gzip",
        "Range: bytes=0-1",
    ],
    ["Host: 127.0.0.1", "Authorization: Bearer all", "Connection: keep-alive", "Expect: 100-continue"],
    ["Host: 127.0.0.1", "Authorization: Bearer all", "Expect: something"],
    ["Host: 127.0.0.1", "Authorization: Bearer all", "Upgrade: websocket", "Connection: Upgrade"],
    ["Host: 127.0.0.1", "Authorization: Bearer all", "X-Homunculus-Forwarded: 1"],
]


@pytest.mark.parametrize("token", [None, "all"])
async def test_both_ways_say_the_same(
    make: Make, monkeypatch: pytest.MonkeyPatch, long_way: list[str], token: str | None
) -> None:
    settings = {} if token is None else {"web_token": token, "web_read_token": "read"}
    short, long = await make(**settings).start(), make(**settings)
    with monkeypatch.context() as patched:
        patched.setattr(Shortcut, "answer", lambda *_: None)
        await long.start()
    for worker in (short, long):
        worker.own(*range(PARTITIONS - 1))
        for key in [*NASTY, "k", "big", ".", ".."]:
            if partition_of(key.encode(), PARTITIONS) in worker.app.engine.tasks:
                worker.put(key, "x" * 100_000 if key == "big" else key)
    asked = 0
    for target in TARGETS:
        for headers in HEADERS:
            asked += 1
            async with connected(short) as one, connected(long) as other:
                assert await one.ask(target, *headers) == await other.ask(target, *headers), (target, headers)
    assert asked <= len(long_way) < 2 * asked, "some took the short way"


@pytest.mark.parametrize(("method", "version"), [("HEAD", "1.1"), ("POST", "1.1"), ("DELETE", "1.1"), ("GET", "1.0")])
async def test_what_is_not_a_plain_get_is_answered_as_ever(
    start: Start, long_way: list[str], method: str, version: str
) -> None:
    worker = (await start()).own(*range(PARTITIONS))
    worker.put("k", "v")
    async with connected(worker) as line:
        line.send("/tables/notes/k", method=method, version=version)
        head = await asyncio.wait_for(line.reader.readuntil(b"\r\n\r\n"), 5)
    assert int(head.split()[1]) == (200 if method in {"GET", "HEAD"} else 405)
    assert long_way == ["/tables/notes/k"]


async def test_a_plain_get_takes_the_short_way_a_304_too(start: Start, long_way: list[str]) -> None:
    worker = (await start()).own(*range(PARTITIONS))
    worker.put("k", "v")
    async with connected(worker) as line:
        await line.ask("/health/live")
        del long_way[:]
        first = await line.ask("/tables/notes/k")
        assert (first.status, first.body) == ("HTTP/1.1 200 OK", b'"v"')
        again = await line.ask("/tables/notes/k", "Host: 127.0.0.1", f"If-None-Match: {first.headers['etag']}")
        assert (again.status, again.body) == ("HTTP/1.1 304 Not Modified", b"")
    assert long_way == []


async def test_answers_come_in_the_order_of_their_requests(make: Make) -> None:
    worker, entered, go = make(), asyncio.Event(), asyncio.Event()

    @worker.app.page("/slow")
    async def slow(view: Any, request: Any) -> Any:
        entered.set()
        await go.wait()
        return view.json("slow")

    (await worker.start()).own(*range(PARTITIONS))
    worker.put("k", "v")
    async with connected(worker) as line, connected(worker) as other:
        line.send("/slow")
        await entered.wait()
        line.send("/tables/notes/k")
        line.send("/tables/notes/missing")
        await line.writer.drain()
        assert (await other.ask("/tables/notes/k")).body == b'"v"', "nobody else waits"
        go.set()
        bodies = [(await line.read()).body for _ in range(3)]
        assert [body[:6] for body in bodies] == [b'"slow"', b'"v"', b'{"erro']
        for _ in range(100):  # more than aiohttp reads ahead
            line.send("/tables/notes/k")
        assert {(await line.read()).body for _ in range(100)} == {b'"v"'}


async def test_who_reads_no_answers_gets_no_more_of_them(start: Start) -> None:
    worker = (await start()).own(*range(PARTITIONS))
    worker.put("k", "x" * 50_000)
    async with connected(worker) as line, connected(worker) as other:
        for _ in range(500):
            line.send("/tables/notes/k")
            await asyncio.sleep(0)
        assert (await other.ask("/health/live")).status.endswith("200 OK")
        assert worker.server is not None
        assert worker.server._runner is not None
        server = worker.server._runner.server
        assert server is not None
        held = [c.transport.get_write_buffer_size() for c in server.connections if c.transport is not None]
        assert max(held) < 200_000
        assert {len((await line.read()).body) for _ in range(500)} == {50_002}


async def test_a_connection_in_use_is_kept_and_a_silent_one_is_not(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("web.protocol.KEEP_ALIVE_S", 0.2)
    monkeypatch.setattr("web.connections.SILENT_S", 0.5)
    monkeypatch.setattr("web.connections.LOOK_S", 0.05)
    worker = (await start()).own(*range(PARTITIONS))
    worker.put("k", "v")
    async with connected(worker) as line:
        began = time.monotonic()
        while time.monotonic() - began < 1.0:
            assert (await line.ask("/tables/notes/k")).body == b'"v"'
        assert await asyncio.wait_for(line.reader.read(), 5) == b"", "closed"


async def test_no_page_of_the_application_takes_the_place_of_a_key(make: Make) -> None:
    worker = make()

    @worker.app.page("/tables/notes/k")
    async def k(view: Any, request: Any) -> Any:
        return view.json({})

    with pytest.raises(UsageError, match="/tables/notes/k"):
        await worker.start()
