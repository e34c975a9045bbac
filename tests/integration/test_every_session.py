"""Any worker answers for any of 10,000 sessions, right or not at all, also while partitions move."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from aiohttp import ClientError, ClientSession, ClientTimeout

from tests.kafka import Broker
from tests.rig import Rig, rig_on
from tests.stream import Running, recount
from tests.worker import Worker, until

pytestmark = pytest.mark.long

SESSIONS = 10_000
EVENTS = 40_000
AT_A_TIME = 16

Found = tuple[str, str, int, tuple[object, ...]]
"""Worker, session, status and, of a 200, what the table says."""


async def ask(client: ClientSession, worker: Worker, session: str) -> Found:
    try:
        async with client.get(f"{worker.url}/tables/sessions/{session}") as answer:
            row = await answer.json() if answer.status == 200 else {}
            if answer.status == 503:
                assert answer.headers["Retry-After"]
            got = (row["count"], row["sum.f0"], row["last.f0"]) if row else ()
            return worker.name, session, answer.status, got
    except (ClientError, OSError, TimeoutError):
        return worker.name, session, 0, ()


async def ask_all(questions: Sequence[tuple[Worker, str]]) -> list[Found]:
    """A few at a time."""
    left, found = list(questions), []
    async with ClientSession(timeout=ClientTimeout(total=10)) as client:

        async def ask_some() -> None:
            while left:
                found.append(await ask(client, *left.pop()))

        await asyncio.gather(*(ask_some() for _ in range(AT_A_TIME)))
    return found


def wrong(found: Sequence[Found], counted: Mapping[str, Running]) -> list[Found]:
    """Answers that are not what a recount says."""
    return [
        one
        for one in found
        if one[2] == 200 and one[3] != (counted[one[1]].count, counted[one[1]].total, counted[one[1]].last)
    ]


def test_every_session_through_every_worker_is_right_and_while_partitions_move_right_or_503(
    kafka: Broker, tmp_path: Path
) -> None:
    with rig_on(kafka, tmp_path, partitions=8) as rig:
        workers = [rig.worker(name, worker_id=None).start() for name in ("a", "b")]
        rig.deploy()
        rig.sender(sessions=SESSIONS).send(EVENTS)
        rig.wait_predictions(120)
        counted = recount(rig.sent)
        assert len(counted) > 0.95 * SESSIONS
        until(lambda: settled(workers, 8), 30, what="two workers share the partitions", alive=workers)

        found = asyncio.run(ask_all([(worker, session) for worker in workers for session in counted]))
        assert Counter(status for _, _, status, _ in found) == {200: 2 * len(counted)}
        assert not wrong(found, counted)

        asyncio.run(while_they_move(rig, workers, counted))


def settled(workers: Sequence[Worker], partitions: int) -> bool:
    held = [worker.get("/tables").json()["partitions"]["open"] for worker in workers]
    return all(held) and sum(map(len, held)) == partitions


async def while_they_move(rig: Rig, workers: list[Worker], counted: Mapping[str, Running]) -> None:
    """A third worker joins, one is stopped, one is killed; readers go on asking whoever runs."""
    chance, over = random.Random(3), asyncio.Event()
    sessions, found = sorted(counted), list[Found]()

    async def read() -> None:
        async with ClientSession(timeout=ClientTimeout(total=10)) as client:
            while not over.is_set():
                found.append(await ask(client, chance.choice(workers), chance.choice(sessions)))

    async def move() -> None:
        third = rig.worker("c", worker_id=None).start()
        await asyncio.to_thread(third.wait_ready)
        workers.append(third)
        first, second = workers[0], workers[1]
        await asyncio.to_thread(until, lambda: settled(workers, 8), 60, what="three share", alive=workers)
        workers.remove(first)
        assert await asyncio.to_thread(first.terminate) == 0
        await asyncio.to_thread(until, lambda: settled(workers, 8), 60, what="two share again", alive=workers)
        workers.remove(second)
        await asyncio.to_thread(second.kill)
        await asyncio.to_thread(until, lambda: settled(workers, 8), 60, what="one has all", alive=workers)

    readers = [asyncio.create_task(read()) for _ in range(4)]
    try:
        await move()
    finally:
        over.set()
        await asyncio.gather(*readers)
    statuses = Counter(status for _, _, status, _ in found)
    assert statuses.keys() <= {0, 200, 503}, statuses
    assert statuses[200] > 1000
    assert not wrong(found, counted)
    found = await ask_all([(workers[0], session) for session in counted])
    assert Counter(status for _, _, status, _ in found) == {200: len(counted)}
    assert not wrong(found, counted)
