"""A broker that is away is told of when it goes, now and then while it lasts, and when it is back.

aiokafka has a line for each try of each client, and each partition one for each time that it opens anew: hundreds a
minute that say the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from core.errors import HomunculusError
from engine.admission import admitted
from engine.connection import Connection

log = logging.getLogger(__name__)

EVERY_S: Final = 30.0
"""Between two lines about one outage, or with one reason."""
LOOK_S: Final = 2.0
"""Between two looks whether the broker is back; it must have failed nobody for as long."""
CLIENT: Final = (
    "Unable connect to ",
    "Unable to request metadata from ",
    "Unable to update metadata from ",
    "Failed fetch messages from ",
    "Failed fetch offsets from ",
    "Group Coordinator Request failed",
    "FindCoordinator Request failed",
    "Error sending %s to node ",
    "Marking the coordinator dead",
    "Heartbeat session expired",
    "Heartbeat send request failed",
    "Heartbeat failed for group %s: coordinator ",
    "LeaveGroup request failed",
    "OffsetCommit failed before join",
    "Cannot send %r to ",
    "Could not send %r: ",
    "Got error produce response",
)
"""How aiokafka's lines begin that say that a broker doesn't do what it was asked."""
LOST: Final = ("Unable ", "KafkaConnectionError", "NodeNotReadyError", "RequestTimedOutError")
"""What such a line holds where a broker can't be reached; the others come of rebalances and of new topics, too."""
REOPENING: Final = "Partition %d: %s; reopening from the last commit in %.1f s"
"""What a partition says that opens anew (engine/task.py)."""
NOT_TAKEN: Final = "the broker did not take a write"
"""How the reason begins where it is the broker's (engine/producer.py); partitions may say it before aiokafka does."""


class Outage(logging.Filter):
    """Takes such lines out of the log, and tells what they mean."""

    def __init__(self) -> None:
        super().__init__()
        self._began: float | None = None
        self._failed_at = 0.0
        self._told_at = 0.0
        self._left_out = 0
        self._reasons: dict[str, float] = {}

    @property
    def lasts(self) -> bool:
        """Whether a broker is away, as far as is known."""
        return self._began is not None

    def filter(self, record: logging.LogRecord) -> bool:
        """False for a line that another one says already."""
        if not log.isEnabledFor(logging.WARNING):
            return True  # ours would not be read
        template = str(record.msg)
        if record.name.startswith("aiokafka") and template.startswith(CLIENT):
            text = record.getMessage()
            if not self.lasts and not any(part in text for part in LOST):
                return True
            self._failed(text)
            return False
        if template == REOPENING and isinstance(record.args, tuple):
            reason = str(record.args[1])
            return not (self.lasts or reason.startswith(NOT_TAKEN)) or self._is_new(reason)
        return True

    def _failed(self, how: str) -> None:
        now = self._failed_at = time.monotonic()
        if self._began is None:
            self._began = self._told_at = now
            self._left_out = 0
            log.warning("A broker is away: %s. The worker waits for it, and says so every %.0f s", how, EVERY_S)
        elif now - self._told_at < EVERY_S:
            self._left_out += 1
        else:
            self._told_at = now
            away = now - self._began
            log.warning("A broker has been away for %.0f s: %s (%d lines left out)", away, how, self._left_out)

    def _is_new(self, reason: str) -> bool:
        """Whether no partition has said it a moment ago."""
        now = time.monotonic()
        self._reasons = {known: at for known, at in self._reasons.items() if now - at < EVERY_S}
        if reason in self._reasons:
            self._left_out += 1
            return False
        self._reasons[reason] = now
        return True

    async def watch(self, connection: Connection) -> None:
        """Looks for ever whether it is over."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look(connection)

    async def look(self, connection: Connection) -> None:
        """It is over when no client has failed for a moment and every broker answers."""
        if self._calm() and await answering(connection) and self._calm() and self._began is not None:
            log.warning("Every broker answers again: one was away for %.0f s", self._failed_at - self._began)
            self._began = None
            self._reasons.clear()

    def _calm(self) -> bool:
        return self.lasts and time.monotonic() - self._failed_at >= LOOK_S


async def answering(connection: Connection) -> bool:
    """Whether every broker that belongs to the cluster lets us in."""
    client = AIOKafkaClient(**connection.options)
    try:
        await admitted(connection.bootstrap, connection.security)
        await client.bootstrap()
        for broker in client.cluster.brokers():
            await admitted(f"{broker.host}:{broker.port}", connection.security)
    except (HomunculusError, KafkaError, OSError, TimeoutError):
        return False
    finally:
        await client.close()
    return True
