"""Any worker answers for any key, or says why it can't."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from urllib.parse import quote

from engine.publisher import partition_of
from tests.kafka import free_port
from tests.unit.web.worker import NASTY, PARTITIONS, Start, Worker


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
