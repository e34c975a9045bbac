"""A partition's own producer: transactional and fencing, idempotent, or plain, as guarantee and broker allow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import InvalidProducerEpoch, KafkaError, ProducerFenced

from core.errors import FencedError, TaskError
from engine.connection import Connection
from engine.deadline import within
from engine.outputs import Builders

ANSWER_S: Final = 30.0
"""Seconds for one step. aiokafka gives up by itself after 15, unless its sender has died: then it never would."""
_BATCH_EXTRA: Final = 65_536
"""Room for a record's headers and frame beside the largest value."""


class PartitionProducer:
    """Sends whole record batches. Every error is a FencedError or a TaskError."""

    def __init__(self, connection: Connection, partition: int) -> None:
        settings = connection.settings
        self.partition = partition
        self.transactional = connection.transactional
        self._open = False
        options: dict[str, Any] = {
            **connection.options,
            "linger_ms": 0,
            "max_batch_size": max(1 << 19, settings.max_record + _BATCH_EXTRA),
            "max_request_size": max(1 << 20, 2 * (settings.max_record + _BATCH_EXTRA)),
            # The broker answers CONCURRENT_TRANSACTIONS while the last one ends: ask again soon.
            "retry_backoff_ms": 20,
            "request_timeout_ms": 15_000,
            "compression_type": None if settings.compression == "none" else settings.compression,
        }
        if self.transactional:
            options |= {
                "transactional_id": f"{settings.app_id}-{partition}",
                "transaction_timeout_ms": 20_000,
            }
        elif connection.idempotent:
            options["enable_idempotence"] = True
        self._producer = AIOKafkaProducer(**options)

    async def start(self) -> None:
        """Connects; a transactional one fences the former owner and ends its open transaction."""
        with _as_ours(self.partition):
            await within(ANSWER_S, self._producer.start())
            if self.transactional:
                await within(ANSWER_S, self._producer._txn_manager.wait_for_pid())

    def new_builder(self) -> Any:
        """An empty record batch."""
        return self._producer.create_batch()

    async def begin(self, targets: Iterable[TopicPartition]) -> None:
        """Opens a transaction ahead of the commit and tells the broker its partitions meanwhile."""
        if not self.transactional:
            return
        with _as_ours(self.partition):
            if not self._open:
                await self._producer.begin_transaction()
                self._open = True
            manager = self._producer._txn_manager
            for target in targets:
                manager.maybe_add_partition_to_txn(target)
            manager.notify_task_waiter()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """What is sent inside is seen together, once the block has ended without an error."""
        with _as_ours(self.partition):
            await self.begin(())
            yield
            if self.transactional:
                await within(ANSWER_S, self._producer.commit_transaction())
                self._open = False

    async def end_empty(self, targets: Iterable[TopicPartition], *, commit: bool) -> None:
        """A transaction without records, that writes its marker to each target: it decides what is open there."""
        with _as_ours(self.partition):
            await self.begin(targets)
            end = self._producer.commit_transaction if commit else self._producer.abort_transaction
            await within(ANSWER_S, end())
            self._open = False

    async def send(self, builders: Builders) -> dict[TopicPartition, int]:
        """Sends batches and waits until the broker has them. Returns the offset behind the last record of each."""
        with _as_ours(self.partition):
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
        """Closes the connection; an open transaction is aborted by the next owner, or times out."""
        # It is being thrown away, and what it left open the next InitProducerId ends.
        with suppress(KafkaError, TimeoutError, OSError):
            await within(within_s, self._producer.stop())


@contextmanager
def _as_ours(partition: int) -> Iterator[None]:
    """Turns aiokafka's errors into ours."""
    try:
        yield
    except (ProducerFenced, InvalidProducerEpoch) as error:
        raise FencedError(partition) from error
    except (KafkaError, OSError, TimeoutError, AssertionError) as error:
        # AssertionError: aiokafka's state machine when a failed transaction is used once more.
        raise TaskError(f"partition {partition}: the broker did not take a write: {error!r}") from error
