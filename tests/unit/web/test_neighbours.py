"""Any worker answers for any key, or says why it can't."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote

import pytest

from engine.publisher import partition_of
from engine.store import PartitionStore, RocksMemory
from engine.table import Table
from tests.kafka import free_port
from tests.unit.web.worker import NASTY, PARTITIONS, Start, Worker
from tests.worker import has_ipv6


def assign(*workers: Worker) -> None:
    """Tells each what the group's leader would."""
    told = {w.url: {"observations": sorted(w.app.engine.tasks)} for w in workers}
    for worker in workers:
        cast(Any, worker.app.assignor).external_topic_distribution = told


@pytest.mark.parametrize("bind", ["127.0.0.1", "::1"])
async def test_any_worker_answers_for_any_key(start: Start, bind: str) -> None:
    if bind == "::1" and not has_ipv6():
        pytest.skip("this machine has no ::1")
    first = (await start(web_bind=bind, web_token="all")).own(0, 2)
    second = (await start(web_bind=bind, web_token="all")).own(1, 3)
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
    tell(first, second.url)
    tell(second, first.url)
    status, _ = await asyncio.wait_for(first.get("/tables/notes/k"), 5)
    assert status == 503


async def test_an_owner_that_does_not_answer_is_named_with_what_may_be_wrong_and_asked_for_again(start: Start) -> None:
    worker = await start()
    tell(worker, f"http://127.0.0.1:{free_port()}")
    await assert_asked_for_again(worker, "--web-host")


async def test_an_owner_that_is_killed_while_it_answers_is_asked_for_again(start: Start) -> None:
    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        writer.close()

    worker = await start()
    async with await asyncio.start_server(die, "127.0.0.1", 0) as owner:
        tell(worker, f"http://127.0.0.1:{owner.sockets[0].getsockname()[1]}")
        await assert_asked_for_again(worker, "ask again")


async def test_an_owner_that_hangs_is_asked_for_again(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.owners.FORWARD_S", 0.1)
    worker = await start()
    with socket.socket() as owner:  # takes connections and reads nothing
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        tell(worker, f"http://127.0.0.1:{owner.getsockname()[1]}")
        await assert_asked_for_again(worker, "ask again")


async def test_an_owners_large_answer_is_passed_on_whole(start: Start) -> None:
    first, second = (await start()).own(), (await start()).own(*range(PARTITIONS))
    assign(first, second)
    second.put("k", "x" * 3_000_000)
    assert await first.get("/tables/notes/k?whole=1") == (200, "x" * 3_000_000)


async def test_an_owners_answer_without_end_is_not_passed_on(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.owners.LARGEST", 1000)
    first, second = (await start()).own(), (await start()).own(*range(PARTITIONS))
    assign(first, second)
    second.put("k", "x" * 2000)
    status, body = await first.get("/tables/notes/k")
    assert status == 502
    assert "1000 bytes" in body["message"]


@pytest.mark.parametrize("here", [True, False])
async def test_a_copy_answers_for_an_owner_that_does_not_where_the_reader_allows_it(
    start: Start, tmp_path: Path, here: bool
) -> None:
    asked, other = await start(), await start()
    dead = f"http://127.0.0.1:{free_port()}"
    for worker in (asked, other):
        told = {dead: {"observations": list(range(PARTITIONS))}, other.url: {"observations": []}}
        cast(Any, worker.app.assignor).external_topic_distribution = told
    store = PartitionStore(tmp_path / "copy", ["notes"], RocksMemory())
    store.write({"notes": {b"k": Table.declared["notes"].encode("as of a moment ago")}})
    keeper = asked if here else other
    copy: Any = SimpleNamespace(store=store, age_s=0.25)
    keeper.app.engine.standbys.copies[partition_of(b"k", PARTITIONS)] = copy

    assert (await asked.get("/tables/notes/k"))[0] == 503
    assert (await asked.get("/tables/notes/k?stale_ok=perhaps"))[0] == 400
    async with asked.client.get("/tables/notes/k?stale_ok=1") as answer:
        assert (answer.status, await answer.json()) == (200, "as of a moment ago")
        assert answer.headers["X-Staleness-Ms"] == "250"
    missing = next(
        key for key in map(str, range(99)) if partition_of(key.encode(), PARTITIONS) == partition_of(b"k", PARTITIONS)
    )
    async with asked.client.get(f"/tables/notes/{missing}?stale_ok=1") as answer:
        assert (answer.status, answer.headers["X-Staleness-Ms"]) == (404, "250")
    store.close()


def tell(worker: Worker, owner: str) -> None:
    """Makes a worker believe that all partitions are somewhere else."""
    cast(Any, worker.app.assignor).external_topic_distribution = {owner: {"observations": list(range(PARTITIONS))}}


async def assert_asked_for_again(worker: Worker, hint: str) -> None:
    async with worker.client.get("/tables/notes/k") as answer:
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "1"
        assert hint in (await answer.json())["message"]
