"""The newest records of a topic: those that were there, then those that come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from core.events import Alert
from core.settings import Settings
from core.topics import ALERTS
from engine.admin import ensure_topics
from engine.connection import connect
from engine.publisher import Publisher
from engine.tail import Tail
from tests.kafka import Broker
from tests.stream import Publisher as RawPublisher

MOST = 5


def alert(n: int) -> Alert:
    return Alert(id=str(n), kind="test", severity="info", state="opened", subject=f"s{n}", ts=n, title=f"number {n}")


class Bench:
    """A tail at work, and who writes to its topic."""

    def __init__(self, tail: Tail[Alert], publisher: Publisher) -> None:
        self.tail = tail
        self._publisher = publisher

    async def publish(self, *numbers: int) -> None:
        for n in numbers:
            await self._publisher.publish(ALERTS, f"s{n}", alert(n))

    async def until(self, condition: Callable[[list[str]], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition([told.value.title for told in self.tail.values]):
                await asyncio.sleep(0.02)


@asynccontextmanager
async def tailed(broker: Broker, prefix: str, *before: int, junk: bytes | None = None) -> AsyncIterator[Bench]:
    """Follows alerts of which some are there before."""
    settings = Settings(broker=broker.url, topic_prefix=prefix, app_id=f"{prefix}app", partitions=4)
    connection = await connect(settings, broker.url)
    await ensure_topics(connection.bootstrap, [ALERTS], settings, connection.security)
    publisher = Publisher(connection)
    await publisher.start()
    bench = Bench(Tail(connection, ALERTS, MOST), publisher)
    await bench.publish(*before)
    if junk is not None:
        raw = RawPublisher(broker.bootstrap, idempotent=False)
        raw.send(f"{prefix}alerts", b"junk", junk)
        raw.flush()
    reading = asyncio.create_task(bench.tail.run())
    try:
        yield bench
    finally:
        reading.cancel()
        await asyncio.wait([reading])
        await publisher.stop()


async def test_the_newest_of_all_partitions_are_kept_and_followed(broker: Broker, prefix: str) -> None:
    async with tailed(broker, prefix, *range(40)) as bench:
        await bench.until(lambda titles: len(titles) == MOST and "number 39" in titles)
        version = bench.tail.version
        await bench.publish(40, 41)
        # Of one millisecond and two partitions nobody knows which came first.
        await bench.until(lambda titles: {"number 41", "number 40"} <= set(titles))
        assert len(bench.tail.values) == MOST
        assert bench.tail.version > version
        ages = [told.at for told in bench.tail.values]
        assert ages == sorted(ages, reverse=True)


async def test_what_is_no_alert_is_left_out(broker: Broker, prefix: str) -> None:
    async with tailed(broker, prefix, 1, junk=b"[" * 5000) as bench:
        await bench.publish(2)
        await bench.until(lambda titles: sorted(titles) == ["number 1", "number 2"])
