"""What aiokafka's connections don't see by themselves: that the broker has fallen silent, that uvloop has closed.

A connection is closed when a request on it has had no answer for its request timeout. Not so where the one who waits
is cancelled first, and aiokafka's own end_offsets() does just that: it waits as long in all, and begins earlier. The
dead connection stays then, the next request goes into it too, and so on for ever.

A reset that comes between two turns of the event loop closes the transport before the connection hears of it. Whoever
writes then gets a RuntimeError from uvloop, which no caller expects: it ends the consumer's fetcher or the producer's
sender, and with it the worker. (Both in tests/chaos/test_network.py.)

Nor that a broker is away: a producer that looks for its coordinator asks again as soon as its retries allow, which is
every 5 ms here, hundreds of times a second until the broker is back.

And a produce request is made by joining, for each brace around its batches, all that is inside of it: each byte is
copied six times. Here once.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import KafkaConnectionError, NodeNotReadyError
from aiokafka.protocol import produce
from aiokafka.protocol.types import Int16, Int32, String

SLACK_S: Final = 0.1
AWAY_S: Final = 0.1
"""Who asks a node that can't be reached hears so after that long."""

_ask: Final = AIOKafkaClient.send
_write: Final = AIOKafkaConnection.send
_write_token: Final = AIOKafkaConnection._send_sasl_token
_PRODUCE: Final = (
    produce.ProduceRequest_v3,
    produce.ProduceRequest_v4,
    produce.ProduceRequest_v5,
    produce.ProduceRequest_v6,
    produce.ProduceRequest_v7,
)
"""Of one layout: what brokers with transactions or headers are asked by."""
_text: Final = String("utf-8").encode
_batch: Final = struct.Struct(">ii").pack


def install() -> None:
    """Teaches every aiokafka client of this process."""
    AIOKafkaClient.send = _ask_and_watch
    AIOKafkaConnection.send = _closing(_write)
    AIOKafkaConnection._send_sasl_token = _closing(_write_token)
    for request in _PRODUCE:
        request.encode = _in_one_piece


def remove() -> None:
    """As it was."""
    AIOKafkaClient.send, AIOKafkaConnection.send, AIOKafkaConnection._send_sasl_token = _ask, _write, _write_token
    for request in _PRODUCE:
        del request.encode  # the base class has its own


def _in_one_piece(request: Any) -> bytes:
    """What Struct.encode() makes of a ProduceRequest."""
    parts: list[Any] = [
        _text(request.transactional_id),
        Int16.encode(request.required_acks),
        Int32.encode(request.timeout),
        Int32.encode(len(request.topics)),
    ]
    for topic, partitions in request.topics:
        parts += (_text(topic), Int32.encode(len(partitions)))
        for partition, batch in partitions:
            parts += (_batch(partition, len(batch)), batch)
    return b"".join(parts)


@wraps(_ask)
async def _ask_and_watch(
    client: Any, node: int, request: Any, *, group: ConnectionGroup = ConnectionGroup.DEFAULT
) -> Any:
    began = time.monotonic()
    try:
        return await _ask(client, node, request, group=group)
    except NodeNotReadyError:
        await asyncio.sleep(AWAY_S)
        raise
    except asyncio.CancelledError:
        connection = client._conns.get((node, group))
        if connection is not None and connection._requests:
            # Answers come in order: as long as this one doesn't, none does.
            left = began + connection._request_timeout - time.monotonic()
            if left > SLACK_S:
                oldest = connection._requests[0]
                asyncio.get_running_loop().call_later(left, _close_if_silent, connection, oldest)
            else:
                _close_if_silent(connection, connection._requests[0])
        raise


def _close_if_silent(connection: Any, oldest: Any) -> None:
    if connection._requests and connection._requests[0] is oldest:
        connection.close(reason=CloseReason.CONNECTION_TIMEOUT)


def _closing(write: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(write)
    def writing(connection: Any, *args: Any, **options: Any) -> Any:
        try:
            return write(connection, *args, **options)
        except RuntimeError as error:
            connection.close(reason=CloseReason.CONNECTION_BROKEN)
            raise KafkaConnectionError(f"Connection at {connection.host}:{connection.port} broken: {error}") from error

    return writing
