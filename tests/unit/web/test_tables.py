"""Tables over HTTP: any key, pages in order, bounds."""

from __future__ import annotations

import random
from base64 import b64decode
from urllib.parse import quote, unquote_to_bytes

import pytest

from tests.unit.web.worker import NASTY, PARTITIONS, Start


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


async def test_a_page_of_large_values_ends_before_it_costs_much_memory(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("web.tables.LARGEST", 2500)
    worker = (await start()).own(0, 1, 2, 3)
    for number in range(9):
        worker.put(f"b{number}", "x" * (5000 if number == 4 else 990))
    seen: list[list[str]] = []
    path = "/tables/notes"
    while path:
        _, body = await worker.get(path)
        seen.append([item["key"] for item in body["items"]])
        path = f"/tables/notes?after={body['next']}" if body["next"] else ""
    assert seen == [["b0", "b1"], ["b2", "b3"], ["b4"], ["b5", "b6"], ["b7", "b8"]]


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "x", "1e3", "9" * 30, ""])
async def test_a_page_has_a_bound(start: Start, limit: str) -> None:
    status, body = await (await start()).get(f"/tables/notes?limit={limit}")
    assert status == 400
    assert "1000" in body["message"]


async def test_the_list_of_tables_says_which_partitions_are_here(start: Start) -> None:
    worker = (await start()).own(1, 3)
    worker.app.engine.tasks[3].open, worker.app.engine.tasks[3].reason = False, "opening"
    _, body = await worker.get("/tables")
    assert body["partitions"] == {"count": PARTITIONS, "open": [1], "opening": {"3": "opening"}, "copies": {}}
    assert [table["name"] for table in body["tables"]] == ["blobs", "clicks", "notes", "profiles"]


async def test_the_list_of_tables_says_about_how_many_keys_are_here(start: Start) -> None:
    worker = (await start()).own(*range(PARTITIONS))
    for number in range(50):
        worker.put(f"k{number}", "v")
    _, body = await worker.get("/tables")
    assert {table["name"]: table["keys"] for table in body["tables"]} == {
        "blobs": 0,
        "clicks": 0,
        "notes": 50,
        "profiles": 0,
    }


async def test_keys_that_are_no_text_are_found_and_paged_as_they_are_shown(start: Start) -> None:
    worker = (await start()).own(*range(PARTITIONS))
    keys = sorted(bytes([first, second]) for first in (0, 37, 47, 128, 254) for second in (0, 37, 255))
    for key in keys:
        worker.put(key, b"of " + key, "blobs")
    seen: list[bytes] = []
    following: str | None = ""
    while following is not None:
        _, body = await worker.get(f"/tables/blobs?limit=4&after={quote(following)}")
        for item in body["items"]:
            seen.append(unquote_to_bytes(item["key"]))
            status, value = await worker.get(f"/tables/blobs/{item['key']}")
            assert status == 200
            assert b64decode(value) == b"of " + seen[-1]
        following = body["next"]
    assert seen == keys


async def test_a_page_shows_the_beginning_of_big_values_and_says_so(start: Start) -> None:
    worker = (await start()).own(*range(PARTITIONS))
    worker.put("big", "x" * 100_000)
    worker.put("small", "y")
    _, body = await worker.get("/tables/notes")
    big, small = body["items"]
    assert big["cut"] is True
    assert big["value"].endswith("… (100,000 characters)")
    assert len(big["value"]) < 3000
    assert small == {"key": "small", "value": "y"}


@pytest.mark.parametrize(
    "query", ["prefx=a", "limit=1&limit=2", "prefix=%FF", "after=%C3", "&".join(["limit=1"] * 100), "=", "stale_ok=1"]
)
async def test_a_query_that_the_route_does_not_have_is_refused_and_not_repeated(start: Start, query: str) -> None:
    worker = (await start()).own(*range(PARTITIONS))
    status, body = await worker.get(f"/tables/notes?{query}")
    assert status == 400
    assert "prefx" not in str(body)
