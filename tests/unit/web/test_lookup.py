"""One value by its key: where it lives, how it looks, and for whom it is still the same."""

from __future__ import annotations

import pytest

from engine.publisher import partition_of
from tests.unit.web.test_neighbours import assign
from tests.unit.web.worker import PARTITIONS, Click, Profile, Start

TS = 1_764_374_400_000


async def test_a_key_lives_where_its_table_says_that_its_session_does(start: Start) -> None:
    first, second = (await start()).own(0, 2), (await start()).own(1, 3)
    assign(first, second)
    for number in range(20):
        session = f"s{number}"
        owner = first if partition_of(session.encode(), PARTITIONS) in first.app.engine.tasks else second
        owner.put(f"{session}/c", Click(TS, session), "clicks", session)
    for worker in (first, second):
        for number in range(20):
            status, body = await worker.get(f"/tables/clicks/s{number}%2Fc")
            assert (status, body["where"]) == (200, f"s{number}")


async def test_where_the_table_can_not_say_whose_a_key_is_the_request_does(start: Start) -> None:
    first, second = (await start()).own(0, 2), (await start()).own(1, 3)
    assign(first, second)
    session = next(f"s{n}" for n in range(99) if partition_of(f"s{n}".encode(), PARTITIONS) in (1, 3))
    key = next(f"k{n}" for n in range(99) if partition_of(f"k{n}".encode(), PARTITIONS) in (0, 2))
    second.put(key, "theirs", session=session)
    for worker in (first, second):
        assert (await worker.get(f"/tables/notes/{key}"))[0] == 404
        assert await worker.get(f"/tables/notes/{key}?session={session}") == (200, "theirs")
        assert (await worker.get(f"/tables/notes/{key}?session="))[0] == 400


async def test_times_are_shown_in_iso_beside_their_ms(start: Start) -> None:
    worker = (await start()).own(*range(PARTITIONS))
    worker.put("s/c", Click(TS, "here"), "clicks", "s")
    _, body = await worker.get("/tables/clicks/s%2Fc")
    assert body == {"ts": TS, "ts_iso": "2025-11-29T00:00:00.000Z", "where": "here"}


async def test_values_of_pydantic_models_are_shown_too(start: Start) -> None:
    worker = (await start()).own(*range(PARTITIONS))
    worker.put("s", Profile(since=TS), "profiles")
    _, body = await worker.get("/tables/profiles/s")
    assert body == {"since": TS, "since_iso": "2025-11-29T00:00:00.000Z"}


async def test_of_a_big_value_the_beginning_is_shown_with_a_note_and_all_of_it_on_request(start: Start) -> None:
    first, second = (await start()).own(), (await start()).own(*range(PARTITIONS))
    assign(first, second)
    second.put("k", "x" * 1_000_000)
    for worker in (first, second):
        async with worker.client.get("/tables/notes/k") as answer:
            assert answer.headers["X-Cut"] == "1"
            text = await answer.json()
            assert text.endswith("… (1,000,000 characters)")
            assert len(text) < 70_000
        async with worker.client.get("/tables/notes/k?whole=1") as answer:
            assert "X-Cut" not in answer.headers
            assert await answer.json() == "x" * 1_000_000


@pytest.mark.parametrize("forwarded", [False, True])
async def test_who_has_a_value_already_is_told_so_and_no_more(start: Start, forwarded: bool) -> None:
    first, second = (await start()).own(), (await start()).own(*range(PARTITIONS))
    assign(first, second)
    asked = first if forwarded else second
    second.put("k", "one")

    async def get(tag: str | None = None) -> tuple[int, str, bytes]:
        headers = {} if tag is None else {"If-None-Match": tag}
        async with asked.client.get("/tables/notes/k", headers=headers) as answer:
            return answer.status, answer.headers["ETag"], await answer.read()

    status, tag, body = await get()
    assert (status, body) == (200, b'"one"')
    assert tag.startswith('"'), "a strong validator"
    for known in (tag, f'"other", {tag}', f"W/{tag}", "*"):
        assert await get(known) == (304, tag, b"")
    assert (await get('"other"'))[0] == 200
    assert (await get("no tag at all"))[0] == 200

    second.put("another key", "two")
    assert (await get(tag))[0] == 304, "other keys of the partition don't matter"
    second.put("k", "two")
    assert (await get(tag))[::2] == (200, b'"two"')
    second.put("k", "one")
    assert (await get(tag))[0] == 304


async def test_the_same_value_has_the_same_tag_on_every_worker(start: Start) -> None:
    tags = set()
    for _ in range(2):
        worker = (await start()).own(*range(PARTITIONS))
        worker.put("s/c", Click(TS, "here"), "clicks", "s")
        async with worker.client.get("/tables/clicks/s%2Fc") as answer:
            tags.add(answer.headers["ETag"])
    assert len(tags) == 1


@pytest.mark.parametrize("query", ["stale_ok=2", "whole=yes", "whole=1&whole=1", "staleok=1", "session=%FF"])
async def test_a_parameter_that_makes_no_sense_is_refused(start: Start, query: str) -> None:
    worker = (await start()).own(*range(PARTITIONS))
    worker.put("k", "v")
    assert (await worker.get(f"/tables/notes/k?{query}"))[0] == 400
