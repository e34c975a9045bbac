"""A broker that has fallen silent: no request waits in a dead connection that an earlier one was given up in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from engine import silence
from tests.kafka import Broker, free_port
from tests.proxy import Proxy

LIMIT_S = 0.5


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    silence.install()
    yield
    AIOKafkaClient.send = silence._send


@pytest.fixture
def wire(embedded: Broker) -> Iterator[Proxy]:
    with Proxy(free_port(), embedded.port) as proxy:
        yield proxy


async def test_a_connection_that_a_request_was_given_up_in_is_not_used_for_ever(wire: Proxy) -> None:
    client = AIOKafkaClient(bootstrap_servers=f"127.0.0.1:{wire.port}", request_timeout_ms=int(LIMIT_S * 1e3))
    await client.bootstrap()
    [broker] = client.cluster.brokers()
    client.cluster._brokers[broker.nodeId] = broker._replace(port=wire.port)  # else it names itself
    await ask(client, broker.nodeId)
    wire.forget()
    answered = False
    for _ in range(4):
        with suppress(TimeoutError, KafkaError):
            async with asyncio.timeout(LIMIT_S - 0.01):
                await ask(client, broker.nodeId)
                answered = True
                break
    await client.close()
    assert answered


async def ask(client: AIOKafkaClient, node: int) -> None:
    await client.send(node, MetadataRequest([]))
