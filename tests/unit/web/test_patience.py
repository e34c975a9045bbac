"""Patience and the end: slow requests, silent connections, a stop that nobody holds up."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from aiohttp import web

from tests.unit.web.worker import Make, Start
from web import server as subject
from web.connections import Connections


async def test_an_answer_that_takes_too_long_is_given_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = (await start()).own(0, 1, 2, 3)
    monkeypatch.setattr(subject, "HANDLE_S", 0.05)
    reader = worker.client.post(
        "/models/churn", data=_drip(), headers={"Content-Type": "application/json", "Content-Length": "50"}
    )
    async with reader as answer:
        assert answer.status == 504


async def test_a_client_that_goes_in_the_middle_of_its_request_leaves_no_line_in_the_log(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    worker = (await start()).own(0, 1, 2, 3)
    _, writer = await asyncio.open_connection("127.0.0.1", worker.app.settings.web_port)
    head = ["POST /models/churn HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", "Content-Length: 50"]
    writer.write("\r\n".join([*head, "", "{}"]).encode())
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    status, _ = await worker.get("/tables")
    assert status == 200
    assert "A web view failed" not in caplog.text


async def _drip() -> AsyncIterator[bytes]:
    yield b'{"active"'
    await asyncio.Event().wait()


async def test_a_request_under_way_does_not_hold_up_the_end(make: Make) -> None:
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
