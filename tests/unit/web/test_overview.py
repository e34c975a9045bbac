"""The whole application at a look, from whichever worker is asked."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aiohttp import web

from tests.kafka import free_port
from tests.unit.web.test_neighbours import assign
from tests.unit.web.worker import Start, Worker
from web.history import Sample


async def frames(worker: Worker, **headers: str) -> AsyncGenerator[dict[str, Any]]:
    """What a watcher is sent."""
    async with worker.client.get("/overview/watch", headers=headers) as answer:
        assert answer.status == 200
        assert answer.content_type == "text/event-stream"
        async for line in answer.content:
            if line.startswith(b"data:"):
                yield json.loads(line[5:])


def remember(worker: Worker, *seconds: int) -> None:
    """Puts samples into a worker's history."""
    assert worker.server is not None
    worker.server._history._samples.extend(Sample(t, 1.0) for t in seconds)


async def test_every_worker_shows_all_of_them(start: Start) -> None:
    first = (await start(web_token="all", worker_id="a")).own(0, 1)
    second = (await start(web_token="all", worker_id="b")).own(2)
    assign(first, second)
    second.work(7)
    second.app.engine.meters.dead_letters["observations", "DecodeError"] += 2
    for asked in (first, second):
        assert (await asked.get("/overview"))[0] == 401
        status, frame = await asked.get("/overview", Authorization="Bearer all")
        assert status == 200
        assert frame["application"] == "homunculus"
        assert frame["partitions"] == 4
        workers = {one["report"]["worker"]: one for one in frame["workers"]}
        assert {name: one["partitions"] for name, one in workers.items()} == {"a": [0, 1], "b": [2]}
        assert [one["report"]["worker"] for one in frame["workers"] if one["here"]] == [asked.app.engine.name]
        assert workers["b"]["report"]["events"] == 7
        assert workers["b"]["report"]["dead_letters"] == {"DecodeError": 2}
        assert not any(one["trouble"] for one in frame["workers"])


async def test_a_watcher_gets_the_past_once_and_then_what_is_new(start: Start) -> None:
    first, second = (await start()).own(0), (await start()).own(1)
    assign(first, second)
    remember(first, 1, 2, 3)
    remember(second, 2, 3)
    seen: dict[str, list[int]] = {first.url: [], second.url: []}
    async with asyncio.timeout(10):
        async for frame in frames(first):
            for one in frame["workers"]:
                seen[one["url"]] += [sample["t"] for sample in one["report"]["samples"]]
            if all(max(seconds) > 3 for seconds in seen.values()):
                break
    for seconds in seen.values():
        assert len(seconds) == len(set(seconds))
        assert {2, 3} < set(seconds)


async def test_after_leaves_the_older_seconds_out(start: Start) -> None:
    worker = await start()
    remember(worker, 1, 2, 3)
    _, frame = await worker.get("/overview?after=1")
    assert [sample["t"] for sample in frame["workers"][0]["report"]["samples"]][:2] == [2, 3]
    for wrong in ("x", "-1", "1.5", "9" * 20, "", "1&after=1"):
        for path in ("/overview", "/overview/here"):
            assert (await worker.get(f"{path}?after={wrong}"))[0] == 400
    assert (await worker.get("/overview/watch?after=1"))[0] == 400


async def test_many_watchers_ask_the_others_no_more_often_than_one(start: Start) -> None:
    first = (await start()).own(0)
    asked = 0

    async def report(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.json_response({"worker": "other", "started": 0})

    async with other(first, report):
        found = await asyncio.gather(*(anext(frames(first)) for _ in range(10)))
    assert asked <= 2
    assert {one["report"]["worker"] for frame in found for one in frame["workers"] if not one["here"]} == {"other"}


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, b"{}", "token"),
        (404, b"{}", "release"),
        (500, b"the payload", "status 500"),
        (200, b"the payload", "form"),
        (200, b'{"worker": 5}', "form"),
    ],
)
async def test_a_worker_that_gives_no_report_is_named_and_not_quoted(
    start: Start, status: int, body: bytes, words: str
) -> None:
    first = (await start()).own(0)

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, body=body)

    async with other(first, answer):
        _, frame = await first.get("/overview")
    troubled = next(one for one in frame["workers"] if not one["here"])
    assert words in troubled["trouble"]
    assert troubled["report"] is None
    assert "payload" not in str(frame)


async def test_a_worker_that_hangs_or_is_gone_holds_nobody_up(start: Start) -> None:
    first = (await start()).own(0)
    with socket.socket() as hanging:  # takes connections and reads nothing
        hanging.bind(("127.0.0.1", 0))
        hanging.listen()
        urls = [f"http://127.0.0.1:{hanging.getsockname()[1]}", f"http://127.0.0.1:{free_port()}"]
        tell(first, *urls)
        async with asyncio.timeout(3):
            _, frame = await first.get("/overview")
    troubles = {one["url"]: one["trouble"] for one in frame["workers"] if not one["here"]}
    assert set(troubles) == set(urls)
    assert all("does not answer" in trouble for trouble in troubles.values())


async def test_alerts_come_with_the_first_frame_and_when_there_are_others(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await start()
    alerts: Any = type("Alerts", (), {"version": 1, "values": [], "trouble": None})()
    monkeypatch.setattr("web.overview.Overview._read_alerts", lambda *_: alerts)
    monkeypatch.setattr("web.overview.EVERY_S", 0.1)
    told = []
    async with asyncio.timeout(10):
        async for frame in frames(worker):
            told.append(("alerts" in frame, frame.get("alerts_trouble")))
            if len(told) == 2:
                alerts.version, alerts.trouble = 2, "no right"
            if len(told) == 3:
                break
    assert told == [(True, None), (False, None), (True, "no right")]


async def test_alerts_are_read_while_somebody_watches_and_no_longer(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = asyncio.Event()

    class Alerts:
        version, values, trouble = 0, (), None

        def __init__(self, *_: object) -> None: ...

        async def run(self) -> None:
            reading.set()
            try:
                await asyncio.Event().wait()
            finally:
                reading.clear()

    monkeypatch.setattr("web.overview.Tail", Alerts)
    worker = await start()
    worker.app.engine.connection = worker.app.engine.consumer = cast(Any, object())
    await worker.get("/overview")
    assert not reading.is_set()
    watching = frames(worker)
    assert (await anext(watching))["alerts"] == []
    await asyncio.wait_for(reading.wait(), 2)
    await watching.aclose()
    async with asyncio.timeout(5):
        while reading.is_set():
            await asyncio.sleep(0.01)


async def test_a_worker_that_stops_lets_its_watchers_go_at_once(start: Start) -> None:
    worker = await start()
    tell(worker, f"http://127.0.0.1:{free_port()}")
    watching = [frames(worker) for _ in range(10)]
    for one in watching:
        await anext(one)
    assert worker.server is not None
    async with asyncio.timeout(2):
        await worker.server.stop()
        for one in watching:
            assert [message async for message in one][-1] == {"reason": "the worker stops"}


@asynccontextmanager
async def other(worker: Worker, answer: Any) -> AsyncIterator[None]:
    """Another worker of the group, which reports so."""
    application = web.Application()
    application.router.add_get("/overview/here", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    tell(worker, f"http://127.0.0.1:{port}")
    yield
    await runner.cleanup()


def tell(worker: Worker, *urls: str) -> None:
    """Makes a worker believe that these are the others."""
    cast(Any, worker.app.assignor).external_topic_distribution = {url: {"observations": [1]} for url in urls}
