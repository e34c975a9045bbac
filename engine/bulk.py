"""Records out of aiokafka's consumer by the chunk or by the batch, as its compiled code decodes them.

aiokafka hands records out one by one, through four Python calls and a dataclass each: 2.3 us at best. A chunk is a
list made in one step: .5 us a record at best, checksums included (10,000 records of 190 bytes, in one run). A batch is
not decoded yet: records that are read out of it one after the other never live together, which spares the collector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.errors import CorruptRecordException

from engine.record import Batch, Record

CHUNK: Final = 1000
"""Most records of a chunk; the last one of a fetch may have fewer."""


def IN_CHUNKS(raw: bytes) -> bytes:  # noqa: N802  it is a mark, never called: give it to a consumer as key_deserializer
    """Marks the consumers whose every "record" is a chunk."""
    return raw


def IN_BATCHES(raw: bytes) -> bytes:  # noqa: N802  as IN_CHUNKS
    """Marks the consumers whose every "record" is a Batch; the first one may begin before the position."""
    return raw


_one_by_one: Callable[[Any], Iterator[Any]] = PartitionRecords._unpack_records


def install() -> None:
    """Teaches aiokafka the mark. Other consumers of the process are as before."""
    PartitionRecords._unpack_records = _unpack
    PartitionRecords.__iter__ = lambda fetched: fetched._records_iterator


def _unpack(fetched: Any) -> Iterator[Any]:
    if fetched._key_deserializer is IN_CHUNKS:
        return _chunks(fetched)
    if fetched._key_deserializer is IN_BATCHES:
        return _batches(fetched)
    return _one_by_one(fetched)


def _batches(fetched: Any) -> Iterator[Batch]:
    """The batches that hold something for readers: next_fetch_offset stands behind each."""
    while fetched._records.has_next():
        batch = fetched._records.next_batch()
        fetched.next_fetch_offset = batch.next_offset
        if not _skipped(fetched, batch):
            yield batch


def _chunks(fetched: Any) -> Iterator[list[Record]]:
    """Does what PartitionRecords._unpack_records does, a chunk at a time: next_fetch_offset stands behind each."""
    pending: list[Record] = []
    end = fetched.next_fetch_offset
    while fetched._records.has_next():
        batch = fetched._records.next_batch()
        end = batch.next_offset
        if _skipped(fetched, batch):
            continue
        records = list(batch)
        if records and records[0].offset < fetched.next_fetch_offset:
            # A fetch begins with the batch that holds the offset, not with the record.
            records = [record for record in records if record.offset >= fetched.next_fetch_offset]
        pending += records
        at = 0
        while len(pending) - at > CHUNK:
            at += CHUNK
            fetched.next_fetch_offset = pending[at].offset
            yield pending[at - CHUNK : at]
        del pending[:at]
    fetched.next_fetch_offset = end
    if pending:
        yield pending


def _skipped(fetched: Any, batch: Any) -> bool:
    """Whether a batch holds no record for readers: a control batch, or one of an aborted transaction."""
    if fetched._check_crcs and not batch.validate_crc():
        raise CorruptRecordException(f"Invalid CRC - {fetched._tp}")
    if fetched._isolation_level == 1 and batch.producer_id is not None:
        fetched._consume_aborted_up_to(batch.base_offset)
        if batch.is_control_batch and fetched._contains_abort_marker(batch):
            fetched._aborted_producers.discard(batch.producer_id)
        if batch.is_transactional and batch.producer_id in fetched._aborted_producers:
            return True
    return bool(batch.is_control_batch)
