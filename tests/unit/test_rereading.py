"""The log read once more: every record that was part of the state, in order, and none that became a dead letter."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from aiokafka import AIOKafkaConsumer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from core.topics import DEAD_LETTERS, OBSERVATIONS
from engine import bulk
from engine.connection import Connection
from engine.rereading import Rereader

SOURCE, LETTERS = TopicPartition("t-observations", 3), TopicPartition("t-dead-letters", 3)
CONNECTION = cast(
    Connection, SimpleNamespace(settings=SimpleNamespace(topic_prefix="t-"), end=lambda asked, high: asked)
)


class Log:
    """A consumer of two partitions that hands out a few records at a time."""

    def __init__(self, records: dict[TopicPartition, list[Any]], most: int) -> None:
        self.records = records
        self.most = most
        self.at = dict.fromkeys(records, 0)

    def assign(self, partitions: list[TopicPartition]) -> None:
        assert set(partitions) == set(self.records)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.at[tp] = offset

    def highwater(self, tp: TopicPartition) -> int:
        return self._end(tp)

    def _end(self, tp: TopicPartition) -> int:
        return self.records[tp][-1].offset + 1 if self.records[tp] else 0

    async def position(self, tp: TopicPartition) -> int:
        return self.at[tp]

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self._end(tp) for tp in partitions}

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    async def offsets_for_times(self, times: dict[TopicPartition, int]) -> dict[TopicPartition, Any]:
        return {tp: SimpleNamespace(offset=0, timestamp=0) if self.records[tp] else None for tp in times}

    async def getmany(self, tp: TopicPartition, timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Any]]:
        found = [one for one in self.records[tp] if one.offset >= self.at[tp]][: min(self.most, max_records)]
        self.at[tp] = found[-1].offset + 1 if found else self._end(tp)
        return {tp: found} if found else {}


def letter(offset: int, of: int, error: str = "FieldError", source: str = "t-observations/3") -> Any:
    headers = (("source", f"{source}/{of}".encode()), ("error", error.encode()))
    return SimpleNamespace(offset=offset, headers=headers)


async def read(log: Log, stops: list[int], start: int = 0) -> list[int]:
    reader = Rereader(CONNECTION, cast(AIOKafkaConsumer, log), OBSERVATIONS, 3)
    await reader.begin(start, 0)
    found, end = [], start
    for stop in stops:
        async for records, end in reader.until(stop, {}):
            found += [record.offset for record in records]
            assert not found or found[-1] < end
        assert end == max(stop, start)
    return found


@given(data=st.data())
def test_whatever_was_refused_in_whatever_order_is_left_out(data: st.DataObject) -> None:
    gaps = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=60))
    offsets = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    refused = data.draw(st.sets(st.sampled_from(offsets)))
    kept = data.draw(st.sets(st.sampled_from(offsets))) - refused
    size = data.draw(st.integers(1, 20))  # of a slice
    letters: list[Any] = []
    for begin in range(0, len(offsets), size):
        of_slice = [one for one in offsets[begin : begin + size] if one in refused | kept]
        for one in data.draw(st.permutations(of_slice)):
            letters.append(letter(len(letters), one, "ScoreError" if one in kept else "FieldError"))
    stops = sorted(data.draw(st.lists(st.integers(1, offsets[-1] + 1), max_size=3)))
    start = data.draw(st.integers(0, 5))
    log = Log(
        {SOURCE: [SimpleNamespace(offset=one) for one in offsets], LETTERS: letters}, data.draw(st.integers(1, 7))
    )
    with patch.object(bulk, "CHUNK", size):
        found = asyncio.run(read(log, [*stops, offsets[-1] + 1], start))
    assert found == [one for one in offsets if one not in refused and one >= start]


def test_dead_letters_of_other_topics_and_without_a_source_say_nothing() -> None:
    letters = [
        letter(0, 0, source="t-control/3"),
        letter(1, 1, source="t-observations/33"),
        SimpleNamespace(offset=2, headers=()),
    ]
    log = Log({SOURCE: [SimpleNamespace(offset=one) for one in range(3)], LETTERS: letters}, 10)
    assert asyncio.run(read(log, [3])) == [0, 1, 2]
    assert DEAD_LETTERS.name in LETTERS.topic
