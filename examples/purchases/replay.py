"""Sends the purchases as fast as they are answered, and what became of them, and reads what comes back, as an
application of its own would."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from core.errors import HomunculusError
from core.events import Action, Alert, Deployment, Feedback, Observation
from core.topics import ALERTS, CONTROL, DEAD_LETTERS, DEPLOYMENTS, FEEDBACK, OBSERVATIONS, PREDICTIONS
from engine.codec import codec_of
from engine.publisher import partition_of
from examples.purchases.ledger import Answer, Ledger
from examples.purchases.outcomes import outcomes
from examples.purchases.story import Story
from examples.purchases.train import NAME

AUTHOR: Final = "scripts/demo"

CHUNK: Final = 250
"""Events handed to the producer at once."""
UNDER_WAY: Final = 2000
"""Events that may wait for their answers: more would only queue, and wait longer."""
SHARE: Final = 40
"""While a change of version is under way, at most a fortieth of the events that are left may wait: so the stream can't
run out before the new version answers, however slow the machine."""
LABELS_UNDER_WAY: Final = 1000
"""Labels that may be on their way to their answers: a fortnight of the stream, and answers are kept for longer."""
STALL_S: Final = 30.0
"""Longest wait for the next answer, and for labels."""
POLL_S: Final = 0.02
STOP_S: Final = 3.0
BATCH_BYTES: Final = 1 << 20


class StalledError(HomunculusError):
    """Answers stopped coming."""


class Replay:
    """Both ends of the stream; `async with` connects them.

    options: aiokafka's, to reach the broker; prefix: of the topics' names; joined: how many labels have found their
    answers.
    """

    def __init__(
        self, options: dict[str, Any], prefix: str, ledger: Ledger, story: Story, joined: Callable[[], Awaitable[int]]
    ) -> None:
        self.requested_at: dict[str, float] = {}
        """version -> when it was asked for, on the ledger's clock."""
        self._ledger = ledger
        self._story = story
        self._joined = joined
        self._have_joined = 0
        self._prefix = prefix
        self._outcomes = outcomes(ledger.events)
        self._where: dict[str, int] = {}
        """session -> its partition."""
        self._observation = codec_of(Observation).encode
        self._feedback = codec_of(Feedback).encode
        self._producer = AIOKafkaProducer(**options, acks="all", max_batch_size=BATCH_BYTES)
        self._consumer = AIOKafkaConsumer(
            **options, isolation_level="read_committed", enable_auto_commit=False, fetch_max_wait_ms=20
        )
        self._read = {
            prefix + PREDICTIONS.name: self._predictions,
            prefix + ALERTS.name: self._alerts,
            prefix + DEPLOYMENTS.name: self._deployments,
            prefix + DEAD_LETTERS.name: self._dead_letters,
        }

    async def __aenter__(self) -> Self:
        try:
            await self._producer.start()
            await self._consumer.start()
            await self._assign()
            partitions = await self._partitions(self._prefix + OBSERVATIONS.name)
            sessions = {event.session for event in self._ledger.events}
            self._where = {session: partition_of(session.encode(), partitions) for session in sessions}
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._stop()

    async def ask_for(self, version: str, **more: Any) -> None:
        """Publishes the request for a version; it is on control when this returns. more: of the request."""
        self.requested_at[version] = time.monotonic()
        await self.ask(Action(active=version, author=AUTHOR, **more))

    async def ask(self, action: Action) -> None:
        """Publishes a request."""
        request = codec_of(Action).encode(action)
        await self._producer.send_and_wait(self._prefix + CONTROL.name, request, key=NAME.encode())

    async def send(self, stop: int) -> None:
        """Sends events up to a place, oldest first, with what becomes known meanwhile of earlier ones. Returns when it
        is all with the broker. Raises StalledError, KafkaError."""
        ledger = self._ledger
        acks: list[Awaitable[Any]] = []
        while ledger.sent < stop:
            start, room = ledger.sent, self._room()
            await self.answered(room - 1)
            await self.labelled(LABELS_UNDER_WAY)
            end = min(stop, start + CHUNK, start + room - ledger.waiting)
            await asyncio.gather(*acks)  # of the chunk before: raises what the broker refused
            acks = await self._send(start, end)
        await asyncio.gather(*acks)

    async def send_until_it_answers(self, version: str) -> None:
        """Sends on, slowly, until the version has answered, or nothing is left."""
        ledger = self._ledger
        while version not in ledger.first_at and ledger.sent < len(ledger.events):
            await self.send(min(len(ledger.events), ledger.sent + CHUNK))

    def _room(self) -> int:
        """How many events may wait for their answers at the moment."""
        ledger = self._ledger
        if any(version not in ledger.first_at for version in self.requested_at):
            return max(1, min(UNDER_WAY, (len(ledger.events) - ledger.sent) // SHARE))
        return UNDER_WAY

    async def read(self) -> None:
        """Takes in everything that the worker writes, until it is cancelled."""
        while True:
            await self._poll(timeout_ms=200)

    async def read_rest(self) -> None:
        """Takes in what stands behind the last answer: repeats, if there are any."""
        assigned = self._consumer.assignment()
        await self._poll(timeout_ms=200)
        while any([await self._consumer.position(tp) < (self._consumer.highwater(tp) or 0) for tp in assigned]):
            await self._poll(timeout_ms=200)

    async def _send(self, start: int, end: int) -> list[Awaitable[Any]]:
        """One batch a partition of each topic; returns what to wait for."""
        chunk = self._ledger.events[start:end]
        known = [each for place in range(start, end) for each in self._outcomes[place]]
        self._ledger.sending(start, end)
        self._ledger.labels += len(known)
        return [
            *await self._send_to(OBSERVATIONS.name, [(each.session, self._observation(each)) for each in chunk]),
            *await self._send_to(FEEDBACK.name, [(each.session, self._feedback(each)) for each in known]),
        ]

    async def _send_to(self, topic: str, records: Sequence[tuple[str, bytes]]) -> list[Awaitable[Any]]:
        batches: defaultdict[int, Any] = defaultdict(self._producer.create_batch)
        for session, value in records:
            batches[self._where[session]].append(key=session.encode(), value=value, timestamp=None)
        return [
            await self._producer.send_batch(batch, self._prefix + topic, partition=p) for p, batch in batches.items()
        ]

    async def answered(self, left: int) -> None:
        """Waits until no more than `left` events are without answer. Raises StalledError."""
        ledger = self._ledger
        while ledger.waiting > left:
            ledger.moved.clear()
            try:
                await asyncio.wait_for(ledger.moved.wait(), STALL_S)
            except TimeoutError:
                raise StalledError(
                    f"no answer came for {STALL_S:g} s: {ledger.answered:,} of {ledger.sent:,} sent events are answered"
                ) from None

    async def labelled(self, left: int) -> None:
        """Waits until no more than `left` labels are without their answers. Raises StalledError."""
        deadline = time.monotonic() + STALL_S
        while self._ledger.labels - self._have_joined > left:
            if (joined := await self._joined()) > self._have_joined:
                self._have_joined, deadline = joined, time.monotonic() + STALL_S
            elif time.monotonic() > deadline:
                raise StalledError(
                    f"no label found its answer for {STALL_S:g} s: {joined:,} of {self._ledger.labels:,} have"
                )
            else:
                await asyncio.sleep(POLL_S)

    async def _poll(self, timeout_ms: int) -> None:
        for tp, records in (await self._consumer.getmany(timeout_ms=timeout_ms)).items():
            self._read[tp.topic](records)

    def _predictions(self, records: list[Any]) -> None:
        decode = codec_of(Answer).decode
        self._ledger.read([decode(record.value) for record in records])

    def _alerts(self, records: list[Any]) -> None:
        decode = codec_of(Alert).decode
        for record in records:
            alert = decode(record.value)
            self._ledger.alerts.setdefault(alert.id, alert)
            self._story.alerted(alert, record.timestamp)

    def _deployments(self, records: list[Any]) -> None:
        decode = codec_of(Deployment).decode
        for record in records:
            self._story.deployed(decode(record.value), record.timestamp)

    def _dead_letters(self, records: list[Any]) -> None:
        for record in records:
            headers = dict(record.headers)
            self._ledger.refused.append(f"{headers['source'].decode()}: {headers['message'].decode()}")
        self._ledger.moved.set()

    async def _assign(self) -> None:
        """All partitions, from their beginning: the topics are this run's own."""
        places = [TopicPartition(topic, n) for topic in self._read for n in range(await self._partitions(topic))]
        self._consumer.assign(places)
        for place in places:
            self._consumer.seek(place, 0)

    async def _partitions(self, topic: str) -> int:
        return len(await self._producer.partitions_for(topic))

    async def _stop(self) -> None:
        """Disconnects. What a broker that is gone still owes us isn't waited for."""
        for client in (self._producer, self._consumer):
            await asyncio.wait([asyncio.create_task(client.stop())], timeout=STOP_S)
