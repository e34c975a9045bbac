"""A connection that never answers is closed, also where whoever asked has stopped waiting before aiokafka gave up.

aiokafka closes a connection when a request on it has had no answer for its request timeout. It doesn't where the one
who waits is cancelled first, and its own end_offsets() does just that: it waits as long in all, and begins earlier. The
dead connection stays then, the next request goes into it too, and so on for ever (tests/chaos/test_network.py).
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import CloseReason

SLACK_S: Final = 0.1

_send = AIOKafkaClient.send


def install() -> None:
    """Teaches every aiokafka client of this process."""
    AIOKafkaClient.send = _send_and_watch


async def _send_and_watch(
    client: Any, node: int, request: Any, *, group: ConnectionGroup = ConnectionGroup.DEFAULT
) -> Any:
    began = time.monotonic()
    try:
        return await _send(client, node, request, group=group)
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
