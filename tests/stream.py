"""Both ends of a test's stream: a sender that keeps what it sent, a reader of topics, and the recount between them."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # re-exported, not listed

EPOCH_MS: Final = 1_700_000_000_000
"""Event time of the first observation; each next one is a millisecond later."""


def _client(bootstrap: str) -> dict[str, Any]:
    """Quiet about a broker that is away, and back with it within half a second."""
    return {"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 500, "log_level": 2}


class Sent(NamedTuple):
    """One observation as it was published."""

    id: str
    session: str
    ts: int
    f0: float


class Record(NamedTuple):
    """One record as it was read."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, str]
    timestamp: int = 0
    """ms since epoch: when it was written."""

    @property
    def json(self) -> Any:
        """The value, decoded."""
        assert self.value is not None, f"{self.topic}/{self.partition}/{self.offset} is a tombstone"
        return json.loads(self.value)


class Publisher:
    """Writes raw records: idempotent where the broker knows that, partitioned as every Kafka client does."""

    def __init__(self, bootstrap: str, *, idempotent: bool = True) -> None:
        self._producer = Producer(
            {
                **_client(bootstrap),
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "enable.idempotence": idempotent,
                "max.in.flight": 5 if idempotent else 1,
                "message.max.bytes": 4_000_000,
                "delivery.timeout.ms": 180_000,
                "topic.metadata.propagation.max.ms": 120_000,
            }
        )
        self.failed: list[str] = []

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Hands one record over; flush() waits for the broker to have it."""
        while True:
            try:
                self._producer.produce(
                    topic,
                    value,
                    key,
                    headers=[(k, v.encode()) for k, v in (headers or {}).items()],
                    callback=self._on_delivery,
                )
                break
            except BufferError:
                self._producer.poll(0.1)
        self._producer.poll(0)

    def flush(self, within_s: float = 60.0) -> None:
        """Waits until the broker has everything. Raises AssertionError when it hasn't, or refused something."""
        waiting = self._producer.flush(within_s)
        assert not waiting, f"{waiting} records are not delivered after {within_s:g} s"
        assert not self.failed, f"{len(self.failed)} records were refused, the first: {self.failed[0]}"

    def delivered(self) -> bool:
        """Whether the broker has everything. Raises AssertionError when it refused something."""
        if not self._producer.flush(0.05):
            self.flush()
            return True
        return False

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))


class Sender:
    """Publishes observations from a thread at a rate, and keeps what it sent: with `Sender(...) as sender: ...`.

    Each has one feature f0, one of 0, 1, 2, 3. The order within a session is the order of `sent`.
    """

    def __init__(
        self, publisher: Publisher, topic: str, *, rate: float = 2000, sessions: int = 200, seed: int = 7
    ) -> None:
        self.sent: list[Sent] = []
        self._publisher = publisher
        self._topic = topic
        self._rate = rate
        self._random = random.Random(seed)
        self._sessions = [f"s{n}" for n in range(sessions)]
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def send(self, count: int) -> Self:
        """Publishes `count` observations as fast as it goes, and waits until the broker has them."""
        for _ in range(count):
            self._one()
        self._publisher.flush()
        return self

    def start(self) -> Self:
        """Publishes at the rate from now on."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._thread.start()
        return self

    def stop(self, within_s: float = 60.0) -> None:
        """Ends the load; returns when the broker has all of it."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join(within_s)
            assert not self._thread.is_alive(), f"the sender hasn't stopped within {within_s:g} s"
            self._thread = None
            self._publisher.flush(within_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        start, number = time.monotonic(), 0
        while not self._stop.is_set():
            self._one()
            number += 1
            ahead = start + number / self._rate - time.monotonic()
            if ahead > 0.01:
                self._stop.wait(ahead)

    def _one(self) -> None:
        number = len(self.sent)
        one = Sent(
            f"e{number}", self._random.choice(self._sessions), EPOCH_MS + number, float(self._random.randrange(4))
        )
        self.sent.append(one)
        self._publisher.send(self._topic, one.session.encode(), observation(one))


def observation(sent: Sent, **more: Any) -> bytes:
    """The record that carries it."""
    return json.dumps(
        {"id": sent.id, "session": sent.session, "ts": sent.ts, "features": {"f0": sent.f0}, **more}
    ).encode()


class Reader:
    """Reads one topic from its start, committed records only; `records` grows with each catch_up()."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.records: list[Record] = []
        self._bootstrap = bootstrap
        self._consumer = self._new_consumer()
        self._admin = self._new_admin()
        self._positions: dict[int, int] = {}
        self._at_end: set[int] = set()
        self.trouble: KafkaException | None = None

    def catch_up(self, within_s: float = 30.0) -> int:
        """Reads on to what is committed now; returns how many records were read in all, 0 while there is no topic."""
        if not self._positions and not self._assign():
            return 0
        moved = time.monotonic()
        deadline = moved + within_s
        ends = self._ends()
        self._read()  # at least once: Tansu's answer can be too small
        while ends is None or any(self._positions[partition] < end for partition, end in ends.items()):
            assert time.monotonic() < deadline, f"{self.topic}: {ends=}, read {self._positions}, {self.trouble=}"
            if self._read():
                moved = time.monotonic()
            elif time.monotonic() > moved + STUCK_S:
                moved = time.monotonic()
                self._reconnect()
            ends = ends or self._ends()
        return len(self.records)

    def read_out(self, within_s: float = 30.0) -> list[Record]:
        """All records of a topic that nobody writes to any more."""
        self.catch_up(within_s)
        deadline = time.monotonic() + within_s
        while self._at_end < self._positions.keys():
            assert time.monotonic() < deadline, f"{self.topic} has no end at {self._positions}"
            self._read()
        return self.records

    @property
    def positions(self) -> dict[int, int]:
        """What it would read next, a partition."""
        return dict(self._positions)

    def close(self) -> None:
        """Lets the broker go."""
        self._consumer.close()

    def _read(self) -> bool:
        """Takes what is at hand. Returns whether there was anything."""
        before = dict(self._positions)
        for message in self._consumer.consume(10_000, 0.05):
            error = message.error()
            if error is None:
                record = _record(message)
                self.records.append(record)
                self._positions[record.partition] = record.offset + 1
                self._at_end.discard(record.partition)
            elif error.code() == KafkaError._PARTITION_EOF:
                partition, end = message.partition(), message.offset()
                assert partition is not None
                assert end is not None
                self._positions[partition] = end
                self._at_end.add(partition)
            elif error.code() not in _PASSING:
                raise KafkaException(error)
        return before != self._positions

    def _reconnect(self) -> None:
        """librdkafka can stay behind for ever after a broker's restart (seen once, "leader epoch is newer")."""
        self._consumer.close()
        self._consumer = self._new_consumer()
        self._consumer.assign([TopicPartition(self.topic, number, at) for number, at in self._positions.items()])

    def _assign(self) -> bool:
        metadata = self._consumer.list_topics(self.topic, 10.0).topics[self.topic]
        if metadata.error is not None or not metadata.partitions:
            return False
        self._positions = dict.fromkeys(metadata.partitions, 0)
        self._consumer.assign([TopicPartition(self.topic, partition, 0) for partition in self._positions])
        return True

    def _ends(self) -> dict[int, int] | None:
        """What is committed now, a partition; None while the broker can't say, and then `trouble` is why."""
        wanted = {TopicPartition(self.topic, partition): OffsetSpec.latest() for partition in self._positions}
        futures = self._admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=10)
        try:
            return {asked.partition: future.result().offset for asked, future in futures.items()}
        except KafkaException as error:  # no leader yet, or the broker starts: the caller has a limit
            self.trouble = error
            self._admin = self._new_admin()  # the old one keeps the leader's epoch that a restart made stale
            return None

    def _new_consumer(self) -> Consumer:
        return Consumer(
            {
                **_client(self._bootstrap),
                "group.id": f"{self.topic}-reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.message.max.bytes": 4_000_000,
            }
        )

    def _new_admin(self) -> AdminClient:
        return AdminClient(_client(self._bootstrap))


STUCK_S: Final = 5.0
"""A reader that is behind and gets nothing for so long connects anew."""
_PASSING: Final = {KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TRANSPORT}
"""While a broker is away."""


def _record(message: Message) -> Record:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    headers = {
        name: value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
        for name, value in _pairs(message.headers())
    }
    written = message.timestamp()[1]
    return Record(topic, partition, offset, _raw(message.key()), _raw(message.value()), headers, written)


def _raw(value: object) -> bytes | None:
    return value if isinstance(value, bytes) else None


def _pairs(headers: Any) -> Iterable[tuple[str, Any]]:
    return headers.items() if isinstance(headers, dict) else headers or []


def group_offsets(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """Where a group says that it is in each partition of a topic."""
    admin = AdminClient(_client(bootstrap))  # its answers come as long as somebody holds it
    [future] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=30).values()
    found = future.result(30).topic_partitions or []
    return {one.partition: one.offset for one in found if one.topic == topic}


@dataclass(slots=True)
class Running:
    """What a session has seen, counted the plain way."""

    count: int = 0
    total: float = 0.0
    last: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.last = value


def recount(sent: Iterable[Sent]) -> dict[str, Running]:
    """Each session's state after everything that was sent."""
    sessions: defaultdict[str, Running] = defaultdict(Running)
    for one in sent:
        sessions[one.session].add(one.f0)
    return dict(sessions)
