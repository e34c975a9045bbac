"""GET /tables/{table}/{key}/watch: a value per commit, from any worker; slow clients harm nobody; all ends in time."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientTimeout

from tests.unit.web.test_neighbours import assign
from tests.unit.web.worker import PARTITIONS, Start, Worker

LIMIT_S = 5


class Follower:
    """One client's stream."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def line(self) -> str:
        """The next one that isn't empty; "" at the end."""
        async with asyncio.timeout(LIMIT_S):
            async for line in self.answer.content:
                if line.strip():
                    return str(line.decode().rstrip("\n"))
        return ""

    async def message(self) -> Any:
        """The next one, decoded."""
        while not (line := await self.line()).startswith("data: "):
            assert line, "the stream has ended"
        return json.loads(line.removeprefix("data: "))

    async def end(self) -> str:
        """Why it ends: what comes before is skipped."""
        while (line := await self.line()) != "event: end":
            assert line, "the stream has ended without a word"
        reason: str = (await self.message())["reason"]
        assert await self.line() == ""
        return reason


@asynccontextmanager
async def following(worker: Worker, path: str = "/tables/notes/k/watch") -> AsyncIterator[Follower]:
    async with worker.client.get(path) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "text/event-stream"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        yield Follower(answer)


@pytest.fixture(params=[False, True], ids=["the owner is asked", "another worker is asked"])
async def workers(start: Start, request: pytest.FixtureRequest) -> tuple[Worker, Worker]:
    """Who is asked, and who owns all partitions."""
    owner = (await start()).own(*range(PARTITIONS))
    if not request.param:
        return owner, owner
    asked = await start()
    assign(owner, asked.own())
    return asked, owner


async def test_each_commit_of_the_key_is_a_message(workers: tuple[Worker, Worker]) -> None:
    asked, owner = workers
    async with following(asked) as follower:
        assert await follower.message() == {"value": None}, "nothing yet"
        owner.put("k", "one")
        assert await follower.message() == {"value": "one"}
        owner.put("another", "not ours")
        owner.put("k", "two")
        owner.put("k", "two")
        assert [await follower.message() for _ in range(2)] == [{"value": "two"}] * 2
        owner.delete("k")
        assert await follower.message() == {"value": None}
    async with following(asked) as again:
        owner.put("k", "three")
        assert await again.message() in ({"value": None}, {"value": "three"})


async def test_it_ends_when_the_partition_goes_and_says_what_to_do(workers: tuple[Worker, Worker]) -> None:
    asked, owner = workers
    async with following(asked) as follower:
        await follower.message()
        for partition in range(PARTITIONS):
            owner.app.engine.watches.closed(partition)
        assert "connect again" in await follower.end()


async def test_ten_followers_end_at_once_when_the_worker_stops(workers: tuple[Worker, Worker]) -> None:
    asked, owner = workers
    async with asyncio.TaskGroup() as group:
        ready = asyncio.Barrier(11)

        async def follow() -> str:
            async with following(asked) as follower:
                await follower.message()
                await ready.wait()
                return await follower.end()

        followers = [group.create_task(follow()) for _ in range(10)]
        await ready.wait()
        began = time.monotonic()
        assert asked.server is not None
        await asked.server.stop()
        assert time.monotonic() - began < 1
    assert {one.result() for one in followers} == {"the worker stops"}
    assert not owner.app.engine.watches._followed, "nobody is remembered who has gone"


async def test_who_has_gone_is_forgotten_at_once(workers: tuple[Worker, Worker]) -> None:
    asked, owner = workers
    async with following(asked) as follower:
        await follower.message()
        assert owner.app.engine.watches._followed
    async with asyncio.timeout(2):
        while owner.app.engine.watches._followed:
            await asyncio.sleep(0.01)


async def test_a_client_that_reads_nothing_harms_nobody(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.events.STALL_S", 0.3)
    worker = (await start()).own(*range(PARTITIONS))
    with socket.socket() as hanging:
        hanging.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        hanging.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(hanging, ("127.0.0.1", worker.app.settings.web_port))
        await loop.sock_sendall(hanging, b"GET /tables/notes/k/watch HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        async with following(worker) as healthy:
            await healthy.message()
            watches, long = worker.app.engine.watches, "🜍" * 15_000
            assert worker.server is not None
            assert worker.server._runner is not None
            server = worker.server._runner.server
            assert server is not None
            async with asyncio.timeout(30):
                while sum(len(w) for w in next(iter(watches._followed.values())).values()) < 2:
                    await asyncio.sleep(0.01)
                number, waits, left = 0, 0, False
                while not left:
                    number += 1
                    worker.put("k", f"{number} {long}")
                    assert (await healthy.message())["value"].startswith(f"{number} ")
                    waits = max(
                        waits, *(c.transport.get_write_buffer_size() for c in server.connections if c.transport)
                    )
                    left = sum(len(w) for w in next(iter(watches._followed.values())).values()) == 1
                assert (await worker.get("/health/live"))[0] == 200
        assert 0 < waits < (128 << 10) + 2 * len(long.encode()), "what waits for one client has a bound"


async def test_a_slow_reader_gets_the_newest_and_how_many_it_has_missed(start: Start) -> None:
    worker = (await start()).own(*range(PARTITIONS))
    with worker.app.engine.watches.on(0, "notes", b"k") as watch:
        for number in range(100):
            worker.app.engine.watches.committed(0, {"notes": [(b"k", b"%d" % number)]})
        worker.app.engine.watches.closed(0)
        taken = [change async for change in watch]
    assert [int(change.raw or b"") for change in taken] == list(range(84, 100))
    assert [change.skipped for change in taken] == [84] + [0] * 15


async def test_more_followers_than_are_served_are_told_to_ask_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("web.events.MOST", 2)
    worker = (await start()).own(*range(PARTITIONS))
    async with following(worker) as first, following(worker) as second:
        await first.message()
        await second.message()
        async with worker.client.get("/tables/notes/k/watch") as answer:
            assert answer.status == 503
            assert answer.headers["Retry-After"] == "1"
        assert (await worker.get("/tables"))[0] == 200, "only streams are counted"


async def test_while_nothing_happens_a_sign_of_life_is_sent(
    workers: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("web.events.HEARTBEAT_S", 0.05)
    async with following(workers[0]) as follower:
        await follower.message()
        assert [await follower.line() for _ in range(3)] == [": still here"] * 3


async def test_an_owner_that_falls_silent_ends_the_stream(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.owners.FOLLOWING", ClientTimeout(sock_read=0.2))
    owner, asked = (await start()).own(*range(PARTITIONS)), (await start()).own()
    assign(owner, asked)
    async with following(asked) as follower:
        await follower.message()
        assert "does not answer" in await follower.end()


async def test_a_refusal_of_the_owner_is_passed_on(start: Start) -> None:
    owner, asked = (await start()).own(*range(PARTITIONS)), (await start()).own()
    assign(owner, asked)
    for task in owner.app.engine.tasks.values():
        task.open, task.reason = False, "restoring its tables"
    async with asked.client.get("/tables/notes/k/watch") as answer:
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "1"
        assert "restoring" in await answer.text()
    assert (await asked.get("/tables/nothing/k/watch"))[0] == 404


async def test_head_begins_no_stream(start: Start) -> None:
    worker = (await start()).own(*range(PARTITIONS))
    async with worker.client.head("/tables/notes/k/watch") as answer:
        assert answer.status == 200
    assert not worker.app.engine.watches._followed


async def test_a_value_that_can_not_be_shown_ends_the_stream_without_its_words(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker = (await start()).own(*range(PARTITIONS))
    async with following(worker) as follower:
        await follower.message()
        table = worker.app.engine.tables["notes"]
        monkeypatch.setattr(type(table), "describe", lambda *_: (_ for _ in ()).throw(ValueError("the payload")))
        worker.put("k", "hush")
        reason = await follower.end()
    assert "payload" not in reason
    assert "the payload" in caplog.text
