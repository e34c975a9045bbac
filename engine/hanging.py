"""Transactions whose markers a broker forgot when it stopped: they are ended before anything is read.

Seen on Kafka 4.4 (one broker, stopped under load, 3 times in 50): the coordinator has logged CompleteCommit, but in
some partitions the marker is missing. What lies behind is invisible to read_committed readers, and the next commit of
the same producer makes it visible, decided or not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from engine.connection import Connection
from engine.deadline import within
from engine.producer import PartitionProducer

log = logging.getLogger(__name__)

STOP_S: Final = 5.0
LOOK_BACK: Final = 100


async def end_hanging(
    connection: Connection, producer: PartitionProducer, positions: TopicPartition, others: Iterable[TopicPartition]
) -> None:
    """Ends what hangs in a task's own partitions: committed if its marker of positions is, else aborted.

    The producer has fenced the former owner, so what is undecided now stays so. A marker of ours in a partition where
    only somebody else's transaction is open changes nothing there.
    """
    targets = [positions, *others]
    raw = AIOKafkaConsumer(**connection.options, isolation_level="read_uncommitted", enable_auto_commit=False)
    stable = AIOKafkaConsumer(**connection.options, isolation_level="read_committed", enable_auto_commit=False)
    try:
        await raw.start()
        await stable.start()
        written = await raw.end_offsets(targets)
        decided = await stable.end_offsets(targets)
        hanging = [tp for tp in targets if decided[tp] < written[tp]]
        if not hanging:
            return
        newest = await _newest_offset(raw, positions, written[positions])
        visible = await _newest_offset(stable, positions, decided[positions])
        commit = newest == visible
        log.warning(
            "Partition %d: the broker left a transaction open in %s; it is %s, as its positions say",
            producer.partition,
            ", ".join(sorted(tp.topic for tp in hanging)),
            "committed" if commit else "aborted",
        )
        await producer.end_empty(hanging, commit=commit)
    finally:
        for consumer in (raw, stable):
            with suppress(TimeoutError, KafkaError):
                await within(STOP_S, consumer.stop())


async def _newest_offset(consumer: AIOKafkaConsumer, tp: TopicPartition, end: int) -> int:
    """Offset of the last record before end that this consumer sees; -1 if there is none in sight."""
    first = (await consumer.beginning_offsets([tp]))[tp]
    consumer.assign([tp])
    consumer.seek(tp, max(first, end - LOOK_BACK))
    newest = -1
    while await consumer.position(tp) < end:
        for record in (await consumer.getmany(tp, timeout_ms=200)).get(tp, ()):
            newest = record.offset
    return newest
