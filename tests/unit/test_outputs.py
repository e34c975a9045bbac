"""Outputs on their way into record batches."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from engine.batch import Staged
from engine.outputs import Outbox


def new_builder() -> Any:
    return BatchBuilder(1000, 0, is_transactional=True, key_serializer=None, value_serializer=None)


def staged(values: list[bytes]) -> Staged:
    keys: list[bytes | None] = [b"ann"] * len(values)
    return Staged("predictions", keys, values, [[("source", value)] for value in values], 3)


def taken(outbox: Outbox) -> list[list[Any]]:
    [batches] = outbox.take().values()
    counts = [batch.record_count() for batch in batches]
    records = [list(MemoryRecords(bytes(batch._build())).next_batch()) for batch in batches]
    assert counts == [len(group) for group in records]
    return records


def test_outputs_of_slices_share_batches_and_keep_their_order() -> None:
    outbox = Outbox(new_builder)
    outbox.add(staged([b"a", b"b"]))
    outbox.add(staged([b"c"]))
    [records] = taken(outbox)
    assert [(r.key, r.value, r.headers) for r in records] == [
        (b"ann", value, [("source", value)]) for value in (b"a", b"b", b"c")
    ]


def test_what_doesnt_fit_into_one_batch_goes_on_in_the_next() -> None:
    outbox = Outbox(new_builder)
    values = [b"%03d" % n + bytes(97) for n in range(20)]
    outbox.add(staged(values))
    assert (outbox.count, outbox.staged, outbox.weight) == (20, 20, 2000)
    batches = taken(outbox)
    assert len(batches) > 3
    assert [r.value for batch in batches for r in batch] == values
    assert [r.offset for r in batches[1]] == list(range(len(batches[1])))
    assert (outbox.count, outbox.staged, outbox.weight) == (0, 20, 0)


def test_an_output_larger_than_a_batch_has_one_to_itself() -> None:
    outbox = Outbox(new_builder)
    outbox.add(staged([b"a", bytes(3000), b"b"]))
    assert [len(batch) for batch in taken(outbox)] == [1, 1, 1]


def test_an_output_that_is_no_record_leaves_those_before_it_whole() -> None:
    outbox = Outbox(new_builder)
    wrong: Any = Staged("predictions", [b"k", b"k"], [b"a", "text"], [[], []], 3)  # type: ignore[list-item]
    with pytest.raises(TypeError):
        outbox.add(wrong)
    outbox.add(staged([b"b"]))
    [records] = taken(outbox)
    assert [r.value for r in records] == [b"a", b"b"]
