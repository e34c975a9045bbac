"""The brokers that tests run on: the Apache Kafka that scripts/test started, and an embedded one of our own."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NoReturn

import pytest

from engine.embedded import HOST, Answer, EmbeddedBroker, answer_at

UP_S = 30.0
EMBEDDED_LATER: Final = pytest.mark.parametrize(
    "broker",
    [pytest.param("kafka", marks=pytest.mark.kafka), pytest.param("embedded", marks=pytest.mark.long)],
    indirect=True,
)
"""For tests of many seconds: on both brokers, on the embedded one in the long run alone."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that is up."""

    name: str
    bootstrap: str
    """host:port, as Kafka clients take it."""
    transactions: bool
    """Whether it knows transactions and idempotent producers; the embedded one doesn't."""

    @property
    def url(self) -> str:
        """The value of HOMUNCULUS_BROKER."""
        return f"kafka://{self.bootstrap}"

    @property
    def port(self) -> int:
        return int(self.bootstrap.rpartition(":")[2])


def given_kafka() -> Broker:
    """The Apache Kafka at KAFKA_BOOTSTRAP.

    Without one the test is skipped; it fails where REQUIRE_KAFKA is set, and where the address is given but dead.
    """
    bootstrap = os.environ.get("KAFKA_BOOTSTRAP", "")
    if not bootstrap:
        _absent("KAFKA_BOOTSTRAP isn't set; scripts/test starts an Apache Kafka where Java and Maven are installed")
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    if asyncio.run(answer_at(host, int(port))) is not Answer.BROKER:
        pytest.fail(f"KAFKA_BOOTSTRAP={bootstrap}: no Kafka broker answers there", pytrace=False)
    return Broker("Apache Kafka", bootstrap, transactions=True)


def _absent(why: str) -> NoReturn:
    if os.environ.get("REQUIRE_KAFKA", "0") not in ("", "0"):
        pytest.fail(f"REQUIRE_KAFKA is set, but {why}", pytrace=False)
    pytest.skip(why)


@contextmanager
def running_embedded() -> Iterator[Broker]:
    """An embedded broker on a free port, served by a thread with an event loop of its own."""
    broker = EmbeddedBroker(free_port())
    up, over = threading.Event(), asyncio.Event()
    failures: list[BaseException] = []

    async def serve() -> None:
        try:
            await broker.start()
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            up.set()
        await over.wait()
        await broker.stop()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="embedded broker")
    thread.start()
    try:
        assert up.wait(UP_S), "the embedded broker neither started nor failed"
        if failures:
            raise failures[0]
        yield Broker("embedded", broker.bootstrap, transactions=False)
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(UP_S)
        loop.close()


def free_port() -> int:
    """A port on loopback that nobody holds at the moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
