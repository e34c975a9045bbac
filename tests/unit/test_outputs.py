"""Outputs on their way into record batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from engine.batch import Staged
from engine.committer import joined
from engine.early import EarlyOutbox
from engine.outboxes import Outboxes
from engine.outputs import Outbox


def new_builder() -> Any:
    return BatchBuilder(1000, 0, is_transactional=True, key_serializer=None, value_serializer=None)


def staged(values: list[bytes]) -> Staged:
    keys: list[bytes | None] = [b"ann"] * len(values)
    return Staged("predictions", keys, values, [[("source", value)] for value in values], 3)


def to(partition: int, value: bytes) -> Staged:
    return Staged("scores", [b"churn@1"], [value], [[]], partition)


def outboxes_of(partition: int) -> Outboxes:
    boxes = Outboxes(partition, None, None)
    boxes._here = Outbox(new_builder)
    return boxes


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


def test_what_neighbours_send_to_one_partition_is_one_batch_of_the_commit() -> None:
    """A produce request carries one batch a partition: each more would be a request, after the answer to the last."""
    partitions = [outboxes_of(n) for n in range(8)]
    for n, boxes in enumerate(partitions):
        boxes.add(to(3, b"%d" % n))
        boxes.add(to(n, b"own %d" % n))
    assert sum(boxes.count for boxes in partitions) == 16
    assert partitions[5].targets == {TopicPartition("scores", 3), TopicPartition("scores", 5)}
    found = [boxes.take() for boxes in partitions]
    together = joined(found, new_builder)
    assert set(together) == {TopicPartition("scores", n) for n in range(8)}
    assert all(len(batches) == 1 for batches in together.values())
    [batch] = together[TopicPartition("scores", 3)]
    records = list(MemoryRecords(bytes(batch._build())).next_batch())
    assert sorted(r.value for r in records) == sorted([b"own 3", *(b"%d" % n for n in range(8))])
    assert [r.offset for r in records] == list(range(9))
    assert not any(boxes.count for boxes in partitions), "the next commit has its own"


async def test_what_does_not_wait_goes_to_others_by_one_outbox_of_the_worker() -> None:
    requests: list[dict[TopicPartition, int]] = []

    async def send(builders: Any) -> dict[TopicPartition, int]:
        requests.append({tp: sum(batch.record_count() for batch in batches) for tp, batches in builders.items()})
        return {}

    async def failed(error: Exception) -> None:
        raise error

    def box() -> EarlyOutbox:
        return EarlyOutbox(cast(Any, SimpleNamespace(new_builder=new_builder, send=send)), failed, lambda _: None)

    shared = box()
    partitions = [Outboxes(n, box(), shared) for n in range(4)]
    for boxes in partitions:
        boxes.add(to(3, b"x"))
    for boxes in partitions:
        for outbox, staged in boxes.take().early:
            await outbox.until_sent(staged)
    scores = TopicPartition("scores", 3)
    assert sorted(request[scores] for request in requests) == [1, 3], "one of its own, and one for all the others"
