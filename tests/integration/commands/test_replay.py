"""`faust -A app replay`: dead letters go back to where they came from, once."""

from __future__ import annotations

import asyncio
import gc
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cli.replay import Filter, replay
from core.errors import UsageError
from core.settings import Settings
from core.topics import ALL, DEAD_LETTERS, DEPLOYMENTS, OBSERVATIONS
from engine.admin import ensure_topics
from engine.connection import Connection, connect
from tests.command import command
from tests.kafka import Broker
from tests.rig import Rig
from tests.stream import EPOCH_MS, Publisher, Reader, Sent, observation


class Letters:
    """Dead letters as the engine writes them, and what came back."""

    def __init__(self, broker: Broker, ours: Settings) -> None:
        self.topic = ours.topic_prefix + DEAD_LETTERS.name
        self.source = ours.topic_prefix + OBSERVATIONS.name
        self.publisher = Publisher(broker.bootstrap, idempotent=broker.transactions)
        self.reader = Reader(broker.bootstrap, self.source)
        self.count = 0

    def write(self, count: int, *, error: str = "FieldError", source: str | None = None, **more: str) -> None:
        for _ in range(count):
            number, self.count = self.count, self.count + 1
            headers = {"source": f"{source or self.source}/{number % 3}/{number}", "error": error, "traceparent": "t"}
            self.publisher.send(self.topic, f"s{number}".encode(), f"letter {number}".encode(), headers | more)
        self.publisher.flush()

    def back(self) -> Counter[str]:
        self.reader.catch_up()
        return Counter((record.value or b"").decode() for record in self.reader.records)


async def run(connection: Connection, letters: Letters, *, dry: bool = False, **filters: str) -> int:
    wanted = Filter({letters.source: 3}, filters.get("source"), filters.get("error"))
    return (await replay(connection, wanted, dry)).replayed.total()


async def test_each_letter_goes_back_once_to_its_partition_with_its_key_and_trace(
    broker: Broker, settings: Settings
) -> None:
    letters, connection = Letters(broker, settings), await connect(settings, broker.url)
    letters.write(700)
    letters.write(20, error="NoModelError")
    assert await run(connection, letters, dry=True) == 720
    assert not letters.back()
    assert await run(connection, letters) == 720
    assert await run(connection, letters) == 0
    letters.write(5)
    assert await run(connection, letters) == 5
    assert letters.back() == Counter(f"letter {number}" for number in range(725))
    for record in letters.reader.records:
        number = int((record.value or b"").split()[1])
        assert record.partition == number % 3
        assert record.key == f"s{number}".encode()
        assert record.headers["replayed"].startswith(f"{letters.topic}/")
        assert record.headers.keys() == {"traceparent", "replayed"}


@pytest.mark.parametrize("letters", [0, 3])
async def test_a_dry_run_leaves_nothing_open(broker: Broker, prefix: str, letters: int) -> None:
    settings = Settings(broker=broker.url, topic_prefix=prefix, app_id=f"{prefix}app", partitions=3)
    connection = await connect(settings, broker.url)
    there = Letters(broker, settings)
    if letters:
        await ensure_topics(broker.bootstrap, ALL, settings)
        there.write(letters)
    gc.collect()
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
    assert await run(connection, there, dry=True) == letters
    gc.collect()
    assert not complaints


async def test_what_a_filter_leaves_out_waits_for_the_next_replay(kafka: Broker, prefix: str, tmp_path: Path) -> None:
    settings = Settings(broker=kafka.url, topic_prefix=prefix, app_id=f"{prefix}app", partitions=3)
    await ensure_topics(kafka.bootstrap, ALL, settings)
    letters, connection = Letters(kafka, settings), await connect(settings, kafka.url)
    for _ in range(30):
        letters.write(7)
        letters.write(2, error="NoModelError")
    assert await run(connection, letters, error="NoModelError") == 60
    assert await run(connection, letters, error="NoModelError") == 0
    letters.write(5, error="NoModelError")
    assert await run(connection, letters) == 215
    assert await run(connection, letters) == 0
    assert letters.back() == Counter(f"letter {number}" for number in range(275))


async def test_a_filter_on_a_broker_that_cannot_remember_it_is_refused(
    embedded: Broker, prefix: str, tmp_path: Path
) -> None:
    settings = Settings(broker=embedded.url, topic_prefix=prefix, app_id=f"{prefix}app", partitions=3)
    await ensure_topics(embedded.bootstrap, ALL, settings)
    letters, connection = Letters(embedded, settings), await connect(settings, embedded.url)
    letters.write(7)
    with pytest.raises(UsageError, match="without --source"):
        await run(connection, letters, error="FieldError")
    assert await run(connection, letters, dry=True, error="FieldError") == 7
    assert await run(connection, letters) == 7


async def test_a_letter_that_claims_another_source_is_never_written_there(broker: Broker, settings: Settings) -> None:
    letters, connection = Letters(broker, settings), await connect(settings, broker.url)
    deployments = settings.topic_prefix + DEPLOYMENTS.name
    letters.write(3, source=deployments)
    letters.write(1, source="__consumer_offsets")
    letters.write(1, truncated="5000000")
    letters.publisher.send(letters.topic, None, b"no headers at all")
    letters.publisher.flush()
    tally_ = await replay(connection, Filter({letters.source: 3}, None, None), False)
    assert tally_.replayed.total() == 0
    assert tally_.left == {
        "its source is no input topic of this application": 5,
        "was too large to be kept whole": 1,
    }
    reader = Reader(broker.bootstrap, deployments)
    assert reader.catch_up() == 0
    reader.close()


async def test_events_that_came_before_their_model_are_answered_after_a_replay(rig: Rig) -> None:
    rig.worker("a", without_model="dead-letter").start()
    until_up = rig.workers[0]
    until_up.wait_log("Partition 0 is open", 40)
    for number in range(30):
        one = Sent(f"e{number}", f"s{number % 7}", EPOCH_MS + number, 1.0)
        rig.publisher.send(rig.topic("observations"), one.session.encode(), observation(one))
    rig.publisher.flush()
    rig.wait_records("dead-letters", 30)
    rig.deploy()
    settings: dict[str, Any] = {
        "broker": rig.broker.url,
        "topic_prefix": rig.prefix,
        "app_id": f"{rig.prefix}app",
        "partitions": rig.partitions,
    }
    first = command("replay", "--source", "observations", "--error", "NoModelError", "--json", **settings)
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["replayed"] == 30
    rig.wait_records("predictions", 30)
    second = command("--json", "replay", **settings)
    assert json.loads(second.stdout)["replayed"] == 0
