"""A worker's own producer: transactional, idempotent, or plain, as guarantee and broker allow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    IllegalOperation,
    InvalidProducerEpoch,
    KafkaConnectionError,
    KafkaError,
    NoError,
    NotCoordinatorError,
    ProducerFenced,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.producer.sender import AddOffsetsToTxnHandler, BaseHandler

from core.errors import FencedError, NotAMemberError, RightsError, TaskError
from engine.admission import REFUSED, in_words
from engine.connection import Connection
from engine.deadline import within
from engine.outputs import Builders
from engine.protocol import TxnOffsetCommitRequest

ANSWER_S: Final = 30.0
"""Seconds for one step. aiokafka gives up by itself after 15, unless its sender has died: then it never would."""
TRANSACTION_S: Final = 20
"""Seconds after which the broker aborts a transaction that nobody ends."""
ADDED_S: Final = 0.001
"""Seconds between two looks whether the partitions of a transaction have been added."""
_BATCH_EXTRA: Final = 65_536
"""Room for a record's headers and frame beside the largest value."""
_REQUEST: Final = 32 << 20
"""Bytes of one produce request, about: a batch of every partition may travel in it. Brokers take 100 MB."""
_REFUSED: Final = {22: "ILLEGAL_GENERATION", 25: "UNKNOWN_MEMBER_ID", 82: "FENCED_INSTANCE_ID"}
"""What a group answers to somebody who is no longer in it."""

Member = tuple[int, str, str | None]
"""A member of the group as it was when it got its partitions: generation, member id, instance id."""


class Producer:
    """Sends whole record batches. Every error is a FencedError or a TaskError, and after one it is of no more use."""

    def __init__(self, connection: Connection, transactional_id: str | None) -> None:
        """transactional_id: None for one that never waits for a commit."""
        settings = connection.settings
        self.transactional = connection.transactional and transactional_id is not None
        self._group = settings.app_id
        self._id = transactional_id
        self._open = False
        self._locked: set[TopicPartition] = set()
        largest = settings.max_record + _BATCH_EXTRA
        options: dict[str, Any] = {
            **connection.options,
            "linger_ms": 0,
            "max_batch_size": max(largest, min(1 << 19, _REQUEST // settings.partitions)),
            "max_request_size": 2 * largest,
            # The broker answers CONCURRENT_TRANSACTIONS while the last one ends: ask again soon.
            "retry_backoff_ms": 5,
            "compression_type": None if settings.compression == "none" else settings.compression,
        }
        if self.transactional:
            options |= {"transactional_id": transactional_id, "transaction_timeout_ms": TRANSACTION_S * 1000}
        elif connection.idempotent:
            options["enable_idempotence"] = True
        self._producer = AIOKafkaProducer(**options)

    async def start(self) -> None:
        """Connects; a transactional one fences whoever had its id, and ends the transaction that was open there."""
        with _as_ours():
            await within(ANSWER_S, self._producer.start())
            if self.transactional:
                await within(ANSWER_S, self._producer._txn_manager.wait_for_pid())

    @property
    def number(self) -> int:
        """The producer id that the broker gave it."""
        return int(self._producer._txn_manager.producer_id)

    def new_builder(self) -> Any:
        """An empty record batch."""
        return self._producer.create_batch()

    async def begin(
        self, member: Member, locks: Mapping[TopicPartition, int], targets: Iterable[TopicPartition]
    ) -> None:
        """Opens a transaction and tells the broker what it will touch: targets first, so that whoever finds a lock
        finds by its partition whose it is (engine/takeover.py).

        locks: source partition -> position. The group coordinator takes them from the partition's owner alone, and
        until the transaction ends nobody gets a stable offset there: a new owner waits for us, or fences us. So
        nothing is written for a partition before it is locked.
        """
        if not self.transactional:
            return
        with _as_ours():
            if not self._open:
                await self._producer.begin_transaction()
                self._open = True
                self._locked.clear()
            manager = self._producer._txn_manager
            missing = {tp: at for tp, at in locks.items() if tp not in self._locked}
            if missing:
                await within(ANSWER_S, self._join_group())
            for target in targets:
                manager.maybe_add_partition_to_txn(target)
            manager.notify_task_waiter()
            if missing:
                await within(ANSWER_S, self._lock(member, missing))
                self._locked.update(missing)

    async def _join_group(self) -> None:
        sender = self._producer._sender
        done = sender._txn_manager._txn_consumer_group is not None
        while not done:
            self._check_alive()
            node = await sender._find_coordinator(CoordinationType.TRANSACTION, self._id)
            done = await AddOffsetsToTxnHandler(sender, self._group).do(node)

    async def _lock(self, member: Member, offsets: Mapping[TopicPartition, int]) -> None:
        sender = self._producer._sender
        while sender._txn_manager.partitions_to_add():
            self._check_alive()
            await asyncio.sleep(ADDED_S)
        done = False
        while not done:
            self._check_alive()
            node = await sender._find_coordinator(CoordinationType.GROUP, self._group)
            done = await _Lock(sender, self._group, member, offsets).do(node)

    def _check_alive(self) -> None:
        """aiokafka's sender dies of a broker that goes away, and tells only those who wait for a batch of theirs."""
        if self._producer._sender.sender_task.done():
            raise KafkaConnectionError("the connection was lost in the middle of a transaction")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """What is sent inside is seen together, once the block has ended without an error. begin() comes first."""
        with _as_ours():
            yield
            if self.transactional:
                await self._end(commit=True)

    async def end_empty(self, targets: Iterable[TopicPartition], *, commit: bool) -> None:
        """A transaction without records, that writes its marker to each target and to the group's offsets: it decides
        what this producer has open there."""
        with _as_ours():
            if self._open:
                await self._end(commit=True)
            await self.begin((-1, "", None), {}, targets)
            await within(ANSWER_S, self._join_group())
            await self._end(commit=commit)

    async def _end(self, commit: bool) -> None:
        producer = self._producer
        await within(ANSWER_S, producer.commit_transaction() if commit else producer.abort_transaction())
        self._open = False

    async def send(self, builders: Builders) -> dict[TopicPartition, int]:
        """Sends batches and waits until the broker has them. Returns the offset behind the last record of each."""
        with _as_ours():
            sent = []
            for target, batches in builders.items():
                for batch in batches:
                    count = batch.record_count()
                    if count:
                        batch.close()
                        future = await self._producer.send_batch(batch, target.topic, partition=target.partition)
                        sent.append((target, count, future))
            ends = {}
            async with asyncio.timeout(ANSWER_S):
                for target, count, future in sent:
                    ends[target] = (await future).offset + count
            return ends

    async def stop(self, within_s: float = 5.0) -> None:
        """Closes the connection; an open transaction is aborted by whoever takes its id next, or times out."""
        # It is being thrown away, and what it left open the next InitProducerId ends.
        with suppress(KafkaError, TimeoutError, OSError):
            await within(within_s, self._producer.stop())


class _Lock(BaseHandler):
    """TxnOffsetCommit with the member's generation, which aiokafka's own does not send."""

    group = ConnectionGroup.COORDINATION

    def __init__(self, sender: Any, group: str, member: Member, offsets: Mapping[TopicPartition, int]) -> None:
        super().__init__(sender)
        self._group = group
        manager = sender._txn_manager
        self._request = TxnOffsetCommitRequest(
            manager.transactional_id, group, (manager.producer_id, manager.producer_epoch), member, offsets
        )

    def create_request(self) -> TxnOffsetCommitRequest:
        return self._request

    def handle_response(self, response: Any) -> float | None:
        """None when it is done, else seconds until it is tried again."""
        for topic, partitions, _ in response.topics:
            for _, code, _ in partitions:
                if code in _REFUSED:
                    raise NotAMemberError(_REFUSED[code])
                error = for_code(code)
                if error in (CoordinatorNotAvailableError, NotCoordinatorError, RequestTimedOutError):
                    return float(self.handle_error())
                if error in (CoordinatorLoadInProgressError, UnknownTopicOrPartitionError):
                    return float(self._default_backoff)
                if error is not NoError:
                    raise error(self._group if error is GroupAuthorizationFailedError else topic)
        return None

    def handle_error(self) -> float:
        """The coordinator is looked up again."""
        self._sender._coordinator_dead(CoordinationType.GROUP)
        return float(self._default_backoff)


@contextmanager
def _as_ours() -> Iterator[None]:
    """Turns aiokafka's errors into ours."""
    try:
        yield
    except (ProducerFenced, InvalidProducerEpoch) as error:
        raise FencedError(type(error).__name__) from error
    except REFUSED as error:
        raise RightsError(in_words(error)) from error
    except (KafkaError, IllegalOperation, OSError, TimeoutError, AssertionError) as error:
        # IllegalOperation, AssertionError: aiokafka's state machine when a failed transaction is used once more.
        raise TaskError(f"the broker did not take a write: {error!r}") from error
