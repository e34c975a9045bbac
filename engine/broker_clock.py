"""What a broker's clock says beside ours. Kafka's protocol has no question for it, but a coordinator notes when a
transaction has begun: one is begun, looked at and given up. Nothing is written to a topic of ours.

It takes the rights that a worker has (docs/security.md): WRITE on a transactional id of ours, READ on the group.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, NamedTuple

from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import ConcurrentTransactions, KafkaError, for_code
from aiokafka.protocol.transaction import AddOffsetsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from engine.connection import Connection
from engine.protocol import DescribeTransactionsRequest
from engine.rights import coordinator

PATIENCE_S: Final = 10.0
"""Seconds that a young coordinator, or the end of a former look, may take."""
AGAIN_S: Final = 0.1
FORGOTTEN_MS: Final = 10_000
"""After which the broker gives the transaction up by itself, should we die in the middle of it."""
_GROUP: Final = ConnectionGroup.COORDINATION


class Difference(NamedTuple):
    """By how many seconds a broker's clock is ahead of ours: between least and most, which are as far apart as the
    question took."""

    broker: str
    """host:port."""
    least: float
    most: float


async def difference(connection: Connection) -> Difference:
    """Of the broker that coordinates our transactions. Raises KafkaError, and NotImplementedError where the broker is
    older than Kafka 3.0."""
    transactional_id = f"{connection.settings.app_id}-clock"
    client = AIOKafkaClient(**connection.options)
    try:
        await client.bootstrap()
        async with asyncio.timeout(PATIENCE_S):
            node = await coordinator(client, CoordinationType.TRANSACTION, transactional_id)
            return await _look(client, node, transactional_id, connection.settings.app_id)
    finally:
        await client.close()


async def _look(client: AIOKafkaClient, node: int, transactional_id: str, group: str) -> Difference:
    given = await _answer(client, node, InitProducerIdRequest(transactional_id, FORGOTTEN_MS), transactional_id)
    producer = (transactional_id, given.reply.producer_id, given.reply.producer_epoch)
    began = await _answer(client, node, AddOffsetsToTxnRequest(*producer, group), group)
    try:
        known = await client.send(node, DescribeTransactionsRequest([transactional_id]), group=_GROUP)
        [(code, _, _, _, started_ms, *_)] = known.transactions
        _check(code, transactional_id)
    finally:
        await client.send(node, EndTxnRequest(*producer, False), group=_GROUP)
    broker = client.cluster.broker_metadata(node)
    # The coordinator notes whole milliseconds.
    least, most = started_ms / 1e3 - began.after, (started_ms + 1) / 1e3 - began.before
    return Difference(f"{broker.host}:{broker.port}", least, most)


class _Answer(NamedTuple):
    """A reply, and the moments between which it was made."""

    reply: Any
    before: float
    after: float


async def _answer(client: AIOKafkaClient, node: int, request: Any, named: str) -> _Answer:
    """Asks until the coordinator is ready for it. Raises KafkaError of what is named."""
    while True:
        before = time.time()
        reply = await client.send(node, request, group=_GROUP)
        after = time.time()
        error = for_code(reply.error_code)
        if not (error.retriable or error is ConcurrentTransactions):
            _check(reply.error_code, named)
            return _Answer(reply, before, after)
        await asyncio.sleep(AGAIN_S)


def _check(code: int, named: str) -> None:
    if code:
        error: type[KafkaError] = for_code(code)
        raise error(named)
