"""Connections that are dead without knowing it: a request doesn't wait in one for ever, and a write to one says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest
import uvloop
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from engine import wire as module
from tests.kafka import Broker, free_port
from tests.proxy import Proxy

LIMIT_S = 1.5


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    module.install()
    yield
    module.remove()


@pytest.fixture
def wire(embedded: Broker) -> Iterator[Proxy]:
    with Proxy(free_port(), embedded.port) as proxy:
        yield proxy


async def test_a_connection_that_a_request_was_given_up_in_is_not_used_for_ever(wire: Proxy) -> None:
    async with asking(wire) as ask:
        wire.forget()
        answered = False
        for _ in range(4):
            with suppress(TimeoutError, KafkaError):
                async with asyncio.timeout(LIMIT_S - 0.01):
                    await ask()
                    answered = True
                    break
        assert answered


def test_a_write_to_a_transport_that_has_closed_meanwhile_is_a_broken_connection(wire: Proxy) -> None:
    async def write() -> None:
        async with asking(wire) as ask:
            [connection] = ask.client._conns.values()
            connection._writer.transport.abort()
            await asyncio.sleep(0)  # uvloop has closed it, the connection hears of it in its next turn
            with pytest.raises(KafkaError):
                connection.send(MetadataRequest([]))
            await ask()

    uvloop.run(write())


class Ask:
    """A question to the broker."""

    def __init__(self, client: AIOKafkaClient, node: int) -> None:
        self.client = client
        self.node = node

    async def __call__(self) -> None:
        await self.client.send(self.node, MetadataRequest([]))


@asynccontextmanager
async def asking(wire: Proxy) -> AsyncIterator[Ask]:
    client = AIOKafkaClient(bootstrap_servers=f"127.0.0.1:{wire.port}", request_timeout_ms=int(LIMIT_S * 1e3))
    await client.bootstrap()
    [broker] = client.cluster.brokers()
    client.cluster._brokers[broker.nodeId] = broker._replace(port=wire.port)  # else it names itself
    ask = Ask(client, broker.nodeId)
    await ask()
    try:
        yield ask
    finally:
        await client.close()
