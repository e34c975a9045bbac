"""What is sent to do harm: paths that lead elsewhere, headers that are two, names that are markup."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest

from tests.unit.web.test_neighbours import assign, tell
from tests.unit.web.worker import PARTITIONS, Start, Worker

EVIL = "evil-9f3a"
"""Part of everything that is tried: it must not come back."""


TARGETS = [
    f"/tables/notes/%0d%0aX-Injected:%20{EVIL}",
    f"/tables/notes/k%0d%0a%0d%0a{EVIL}",
    f"/tables/..%2f..%2f{EVIL}",
    f"/tables/notes/..%2f..%2fmodels%2f{EVIL}",
    f"/tables/%2e%2e/{EVIL}",
    f"/../../etc/{EVIL}",
    f"//{EVIL}/tables/notes/k",
    f"/tables//{EVIL}",
    f"/tables/notes/%00{EVIL}",
    f"/tables/notes/%c0%af{EVIL}",
    f"/tables/notes/%ff{EVIL}",
    f"/tables/notes/<script>{EVIL}</script>",
    f"/tables/notes/%3Cscript%3E{EVIL}",
    f"/tables/<script>{EVIL}",
    f"/tables/notes/{{{{7*7}}}}{EVIL}",
    f"/tables/notes/k@{EVIL}",
    f"/tables/notes/k;{EVIL}",
    f"/tables/notes/k\\..\\{EVIL}",
    f"/tables/notes/k?session=%0d%0aX-Injected:%20{EVIL}",
    f"/tables/notes/k?{EVIL}=1",
    f"/tables/notes?prefix=%0d%0aX-Injected:{EVIL}&limit={EVIL}",
    f"/tables/notes/{EVIL}/watch/x",
    f"/models/{EVIL}",
    f"http://{EVIL}/tables/notes/k",
    f"http://user:{EVIL}@127.0.0.1/tables/notes/k",
    f"/tables/notes/{EVIL * 700}",
    f"/tables/notes/\xff{EVIL}",
    f"/tables/notes/k?session=\xff{EVIL}",
]
AMBIGUOUS = [
    ["X-A: b\r\n X-Folded: c"],
    ["Content-Length: 5", "Transfer-Encoding: chunked"],
    ["Content-Length: 5", "Content-Length: 6"],
    ["Transfer-Encoding: chunked, identity"],
    ["X-\x00: b"],
    [f"X-Long: {'x' * 20_000}"],
    [f"X-{n}: b" for n in range(40_000)],
    ["Host: 127.0.0.1\r\nHost: evil.example"],
]


async def raw(worker: Worker, head: bytes) -> str:
    """The whole answer to a request as it stands; the connection is closed by then."""
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.app.settings.web_port)
    writer.write(head)
    answer = b""
    with suppress(ConnectionError):  # what it has not read when it refuses ends the connection
        while piece := await asyncio.wait_for(reader.read(65536), 5):
            answer += piece
    writer.close()
    return answer.decode()


def get(target: str, *headers: str, host: str = "127.0.0.1") -> bytes:
    lines = [f"GET {target} HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


@pytest.mark.parametrize("forwarded", [False, True])
async def test_nothing_that_is_sent_comes_back_or_leads_elsewhere(start: Start, forwarded: bool) -> None:
    owner = (await start()).own(*range(PARTITIONS))
    asked = owner
    if forwarded:
        asked = await start()
        assign(owner, asked.own())
    for target in TARGETS:
        answer = await raw(asked, get(target))
        head, _, body = answer.partition("\r\n\r\n")
        assert int(head.split()[1]) in {400, 403, 404, 405}, (target, answer)
        assert "x-injected" not in head.lower(), target
        assert EVIL not in answer, target
        assert "application/json" in head, target
        assert "traceback" not in body.lower(), target


async def test_requests_that_two_servers_would_read_in_two_ways_are_refused(start: Start) -> None:
    worker = await start()
    for headers in AMBIGUOUS:
        answer = await raw(worker, get("/tables", *headers))
        assert answer.split()[1] in {"400", "403"}, (headers[:2], answer)
    assert (await worker.get("/health/live"))[0] == 200


@pytest.mark.parametrize("settings", [{}, {"web_token": "secret-1"}])
async def test_who_names_no_version_of_http_that_we_speak_gets_one_answer(
    start: Start, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    worker = (await start(**settings)).own(*range(PARTITIONS))
    for path in ("/", "/health/live", "/tables", "/tables/notes/k/watch", f"/{EVIL}"):
        for line in (f"GET {path}", f"GET {path} HTTP/0.9", f"GET {path} HTTP/2.0", f"POST {path}"):
            answer = await raw(worker, f"{line}\r\n\r\n".encode())
            head, _, body = answer.partition("\r\n\r\n")
            assert head.startswith("HTTP/1.0 400 Bad Request\r\n"), (line, answer)
            assert "X-Content-Type-Options: nosniff" in head
            assert "HTTP/1.1" in json.loads(body)["message"]
            assert EVIL not in answer
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
async def test_no_other_site_is_let_in_by_cors(start: Start, origin: str) -> None:
    worker = (await start()).own(*range(PARTITIONS))
    worker.put("k", "v")
    for method, path in (("GET", "/tables/notes/k"), ("OPTIONS", "/tables/notes/k"), ("OPTIONS", "/models/churn")):
        headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        async with worker.client.request(method, path, headers=headers) as answer:
            assert not [name for name in answer.headers if name.lower().startswith("access-control-")]


async def test_a_client_can_not_make_a_worker_ask_another_one_twice(start: Start) -> None:
    owner, asked = (await start()).own(*range(PARTITIONS)), await start()
    assign(owner, asked.own())
    owner.put("k", "v")
    assert await asked.get("/tables/notes/k") == (200, "v")
    assert (await asked.get("/tables/notes/k", **{"X-Homunculus-Forwarded": "1"}))[0] == 503


async def test_only_the_token_and_the_tag_of_a_request_reach_another_worker(start: Start) -> None:
    seen: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-Theirs: 1\r\nSet-Cookie: a=b\r\n\r\n"v"')
        writer.close()

    asked = await start()
    async with await asyncio.start_server(note, "127.0.0.1", 0) as owner:
        tell(asked, f"http://127.0.0.1:{owner.sockets[0].getsockname()[1]}")
        headers = {"Cookie": "secret=1", "X-Forwarded-For": "1.2.3.4", "Authorization": "Bearer t", "X-Other": "x"}
        async with asked.client.get("/tables/notes/k", headers=headers) as answer:
            assert answer.status == 200
            assert "X-Theirs" not in answer.headers
            assert "Set-Cookie" not in answer.headers
    assert b"Bearer t" in seen[0]
    for other in (b"secret", b"1.2.3.4", b"X-Other"):
        assert other not in seen[0]
