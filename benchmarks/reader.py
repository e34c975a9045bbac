"""Reads a topic as a downstream consumer does: read_committed, from its beginning, one thread, no group."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, Self

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

BATCH: Final = 10_000


class Scored(msgspec.Struct):
    """What comparing two sides needs of a prediction."""

    event_id: str
    scores: dict[str, float]


class Reader:
    """Counts a topic's records and, if asked, keeps their values."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, *, keep: bool) -> None:
        self.count = 0
        self._values: list[bytes] = []
        self._keep = keep
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{topic}-reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 5,
                "fetch.queue.backoff.ms": 1,
            }
        )
        self._consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._consumer.close()

    def read(self, wait_s: float = 0.0) -> int:
        """Takes what has arrived, waiting up to wait_s for the first record. Returns how many there are in all."""
        self.take(wait_s)
        return self.count

    def take(self, wait_s: float) -> tuple[int, list[bytes]]:
        """Takes what has arrived, as read() does. Returns the monotonic time in ns at which it was here, and it."""
        first = self._consumer.poll(wait_s)
        now = time.monotonic_ns()
        if first is None:
            return now, []
        fresh: list[bytes] = []
        for message in (first, *self._consumer.consume(BATCH, 0)):
            if (error := message.error()) is not None:
                raise KafkaException(error)
            fresh.append(message.value() or b"")
        self.count += len(fresh)
        if self._keep:
            self._values += fresh
        return now, fresh

    def scores(self) -> dict[str, dict[str, float]]:
        """Event id -> label -> probability, of everything that was read and kept."""
        decode = msgspec.json.Decoder(Scored).decode
        return {scored.event_id: scored.scores for scored in map(decode, self._values)}
