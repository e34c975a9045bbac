"""The load that every side gets: the same observations, byte for byte, keyed so that partitions agree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from confluent_kafka import KafkaException, Message, Producer

FIELDS: Final = tuple(f"f{n}" for n in range(8))
"""Raw features of an observation; the model takes their session means too."""

START_MS: Final = 1_767_225_600_000
"""Event time of the first event."""

FLUSH_S: Final = 60.0

Record = tuple[bytes, bytes]
"""Key and value."""


@dataclass(frozen=True, slots=True)
class Load:
    """Observations of `sessions` sessions, drawn with equal odds; the same seed gives the same bytes."""

    sessions: int = 10_000
    seed: int = 7

    def once_each(self) -> list[Record]:
        """One event a session: warms every row of the state and every path of the code."""
        return list(self._records(np.arange(self.sessions), "w", self.seed))

    def events(self, count: int, round_: int = 0) -> list[Record]:
        """`count` events over all sessions; each round has other ids and other values."""
        draw = np.random.default_rng((self.seed, round_))
        return list(self._records(draw.integers(self.sessions, size=count), f"r{round_}-", self.seed + round_ + 1))

    def new_sessions(self, first: int, count: int) -> Iterator[Record]:
        """One event each for the sessions `first` up to `first + count`, made as they are read."""
        return self._records(np.arange(first, first + count), f"n{first}-", self.seed + first)

    def _records(self, sessions: np.ndarray, prefix: str, seed: int) -> Iterator[Record]:
        encode = msgspec.json.Encoder().encode
        draw = np.random.default_rng(seed)
        for begin in range(0, len(sessions), 10_000):
            some = sessions[begin : begin + 10_000].tolist()
            values = draw.standard_normal((len(some), len(FIELDS))).round(4).tolist()
            for n, (session, row) in enumerate(zip(some, values, strict=True), start=begin):
                key = f"s{session}"
                observation = {
                    "id": f"{prefix}{n}",
                    "session": key,
                    "ts": START_MS + n,
                    "features": dict(zip(FIELDS, row, strict=True)),
                }
                yield key.encode(), encode(observation)


class Publisher:
    """Fills a topic as fast as one core allows, with murmur2 as Java's clients do, and knows what arrived."""

    def __init__(self, bootstrap: str, linger_ms: float = 20) -> None:
        self._failed: str | None = None
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "partitioner": "murmur2_random",
                "linger.ms": linger_ms,
                "batch.size": 262_144,
                "queue.buffering.max.messages": 500_000,
                "enable.idempotence": True,
                "on_delivery": self._delivered,
            }
        )

    def publish(self, topic: str, records: Iterable[Record]) -> int:
        """Sends all of them and waits until the broker has them. Returns how many."""
        sent = 0
        for key, value in records:
            self.send(topic, key, value)
            sent += 1
        self.flush()
        return sent

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        """Queues one record, waiting where the queue is full."""
        while True:
            try:
                self._producer.produce(topic, value, key)
                break
            except BufferError:
                self._producer.poll(0.1)
        self._producer.poll(0)

    def flush(self) -> None:
        """Waits for what is queued. Raises KafkaException when a record can't be delivered in time."""
        left = self._producer.flush(FLUSH_S)
        if left or self._failed:
            raise KafkaException(self._failed or f"{left} records still queued after {FLUSH_S:.0f} s")

    def _delivered(self, error: object, _message: Message) -> None:
        if error is not None and self._failed is None:
            self._failed = str(error)
