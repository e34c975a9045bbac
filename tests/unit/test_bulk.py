"""Chunks and batches hold what aiokafka hands out one by one, whatever aborted transactions and markers lie between."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import bulk

PRODUCER = 7


@pytest.fixture(autouse=True, scope="module")
def installed() -> None:
    bulk.install()


def batch(base: int, count: int, *, transactional: bool, gap: int = 0) -> bytes:
    """A record batch at an offset, with a gap before its last record as compaction leaves it."""
    builder = DefaultRecordBatchBuilder(2, 0, int(transactional), PRODUCER if transactional else -1, 0, 0, 1 << 20)
    for n in range(count):
        offset = n + (gap if n == count - 1 else 0)
        builder.append(offset, 1_000 + n, b"k%d" % (base + offset), b"v%d" % n, [])
    raw = bytearray(builder.build())
    raw[:8] = struct.pack(">q", base)  # outside of what the checksum covers
    return bytes(raw)


def fetched(raw: bytes, aborted: list[tuple[int, int]], start: int, mark: Any) -> PartitionRecords:
    records = MemoryRecords(raw)
    return PartitionRecords(TopicPartition("t", 0), records, aborted, start, mark, None, True, READ_COMMITTED)


def written(batches: list[Any]) -> tuple[bytes, list[tuple[int, int]], int]:
    """What a broker answers with: its bytes, the aborted transactions in it, and the offset behind it."""
    raw, base, aborted = b"", 0, []
    for count, transactional, gap, abort in batches:
        raw += batch(base, count, transactional=transactional, gap=gap)
        if transactional and abort:
            aborted.append((PRODUCER, base))
        base += count + gap
    return raw, aborted, base


Batches = st.lists(
    st.tuples(st.integers(1, 900), st.booleans(), st.integers(0, 3), st.booleans()), min_size=1, max_size=6
)


@settings(deadline=None)
@given(batches=Batches, data=st.data())
def test_chunks_are_the_records_of_aiokafka_in_order(batches: list[Any], data: st.DataObject) -> None:
    raw, aborted, base = written(batches)
    start = data.draw(st.integers(0, batches[0][0] + batches[0][2] - 1))  # a fetch begins with the batch that holds it
    one_by_one = fetched(raw, list(aborted), start, None)
    expected = [(record.offset, record.key, record.value) for record in one_by_one]

    chunked = fetched(raw, list(aborted), start, bulk.IN_CHUNKS)
    found: list[tuple[int, bytes, bytes]] = []
    for chunk in chunked:
        assert 0 < len(chunk) <= bulk.CHUNK
        found += [(record.offset, record.key, record.value) for record in chunk]
        assert chunked.next_fetch_offset > chunk[-1].offset
    assert found == expected
    assert chunked.next_fetch_offset == one_by_one.next_fetch_offset == base


@settings(deadline=None)
@given(batches=Batches, data=st.data())
def test_batches_hold_the_records_of_aiokafka_in_order(batches: list[Any], data: st.DataObject) -> None:
    raw, aborted, base = written(batches)
    start = data.draw(st.integers(0, batches[0][0] + batches[0][2] - 1))
    one_by_one = fetched(raw, list(aborted), start, None)
    expected = [(record.offset, record.key, record.value) for record in one_by_one]

    in_batches = fetched(raw, list(aborted), start, bulk.IN_BATCHES)
    found: list[tuple[int, bytes, bytes]] = []
    for whole in in_batches:
        assert in_batches.next_fetch_offset == whole.next_offset
        found += [(record.offset, record.key, record.value) for record in whole]
        assert found[-1][0] < whole.next_offset
    assert [record for record in found if record[0] >= start] == expected
    assert in_batches.next_fetch_offset == one_by_one.next_fetch_offset == base


def test_a_chunk_left_for_later_is_where_the_position_says() -> None:
    chunked = fetched(batch(0, 1200, transactional=False), [], 0, bulk.IN_CHUNKS)
    first = next(iter(chunked))
    assert [record.offset for record in first] == list(range(bulk.CHUNK))
    assert chunked.next_fetch_offset == bulk.CHUNK
    second = next(iter(chunked))
    assert second[0].offset == bulk.CHUNK


@pytest.mark.parametrize("mark", [bulk.IN_CHUNKS, bulk.IN_BATCHES])
def test_a_batch_whose_bytes_have_changed_is_an_error(mark: Any) -> None:
    raw = bytearray(batch(0, 3, transactional=False))
    raw[-1] ^= 1
    with pytest.raises(CorruptRecordException):
        list(fetched(bytes(raw), [], 0, mark))
