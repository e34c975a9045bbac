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
from aiohttp.http_parser import RawRequestMessage

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
            for before in ([], ["/tables/notes/k"]):  # its headers are known then
                asked += 1 + len(before)
                async with connected(short) as one, connected(long) as other:
                    for each in [*before, target]:
                        assert await one.ask(each, *headers) == await other.ask(each, *headers), (target, headers)
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


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of requests that were parsed and answered at once."""
    taken: list[str] = []
    answer = Shortcut.answer

    def noted(shortcut: Shortcut, message: RawRequestMessage) -> bytes | None:
        taken.append(message.path)
        return answer(shortcut, message)

    monkeypatch.setattr(Shortcut, "answer", noted)
    return taken


async def test_headers_that_come_again_are_not_parsed_again(start: Start, parsed: list[str]) -> None:
    worker = (await start()).own(*range(PARTITIONS))
    for key in ("k", "l"):
        worker.put(key, key)
    async with connected(worker) as line, connected(worker) as other:
        assert [(await each.ask(f"/tables/notes/{key}")).body for each in (line, other) for key in ("k", "l")] == [
            b'"k"',
            b'"l"',
        ] * 2
        assert parsed == ["/tables/notes/k"]
        worker.put("k", "changed")
        first = await line.ask("/tables/notes/k")
        assert first.body == b'"changed"'
        known = await line.ask("/tables/notes/k", "Host: 127.0.0.1", f"If-None-Match: {first.headers['etag']}")
        assert known.status == "HTTP/1.1 304 Not Modified"
        assert await line.ask("/tables/notes/k") == first
        assert parsed == ["/tables/notes/k"] * 2


async def test_what_is_remembered_is_bounded(start: Start, parsed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.shortcut.MOST", 3)
    worker = (await start()).own(*range(PARTITIONS))
    worker.put("k", "v")
    async with connected(worker) as line:
        for n in (1, 2, 3, 3, 2, 4, 4, 1):
            assert (await line.ask("/tables/notes/k", "Host: 127.0.0.1", f"X: {n}")).body == b'"v"'
        assert len(parsed) == 5
        for _ in range(2):
            assert (await line.ask("/tables/notes/k", "Host: 127.0.0.1", f"X: {'x' * 4000}")).body == b'"v"'
        assert len(parsed) == 7


async def test_the_end_of_a_request_is_none(start: Start) -> None:
    worker = (await start(web_token="all")).own(*range(PARTITIONS))
    worker.put("k", "v")
    worker.put("l", "w")
    token = "Authorization: Bearer all"

    async def in_pieces(line: Line, *pieces: str) -> Said:
        for piece in pieces[:-1]:
            line.writer.write(piece.encode())
            async with connected(worker) as other:  # what was sent before has been read when this is answered
                await other.ask("/health/live")
        line.writer.write(pieces[-1].encode())
        return await line.read()

    begin = f"GET /tables/notes/k HTTP/1.1\r\n{token}\r\nX: "  # a header that looks like a request
    end = "GET /tables/notes/l HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    plain = end.replace("Host", f"{token}\r\nHost")
    for _ in range(2):
        async with connected(worker) as line:
            assert (await in_pieces(line, begin, end)).body == b'"v"'
            assert (await in_pieces(line, begin, end)).body == b'"v"'
        async with connected(worker) as line:
            assert (await line.ask("/tables/notes/l", "Host: 127.0.0.1")).status == "HTTP/1.1 401 Unauthorized"
    async with connected(worker) as line:
        assert (await in_pieces(line, plain)).body == b'"w"'
        assert (await in_pieces(line, begin, plain)).body == b'"v"'
    async with connected(worker) as line:
        assert (await in_pieces(line, plain + begin, plain)).body == b'"w"'
        assert (await line.read()).body == b'"v"'
        assert (await in_pieces(line, plain)).body == b'"w"'
    for cut in range(1, len(plain)):
        async with connected(worker) as line:
            assert (await in_pieces(line, plain[:cut], plain[cut:])).body == b'"w"'
            assert (await in_pieces(line, plain)).body == b'"w"'


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
