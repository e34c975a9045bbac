"""Topics read from somewhere to the end of this moment."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition

from core.errors import SettingsError
from core.topics import TopicSpec
from engine import rights
from engine.admin import TopicAdmin
from engine.codec import codec_of, explain
from engine.connection import Connection
from engine.snapshot import SILENT_S

E = TypeVar("E")

CHUNK: Final = 500
"""Records of one read."""


async def partitions_of(connection: Connection, *names: str) -> list[TopicPartition]:
    """The partitions that the broker has of these topics; none of those that it doesn't have."""
    async with TopicAdmin(connection.bootstrap, connection.security) as admin:
        shapes = await admin.shapes()
    return [
        TopicPartition(name, number) for name in names if name in shapes for number in range(shapes[name].partitions)
    ]


async def ends(connection: Connection, names: list[str]) -> dict[str, dict[int, int]]:
    """Topic -> partition -> its end offset, for the topics that exist."""
    await rights.check(connection, rights.Needed(dict.fromkeys(names, frozenset({rights.DESCRIBE}))))
    found = await partitions_of(connection, *names)
    offsets: dict[str, dict[int, int]] = {}
    if found:
        async with AIOKafkaConsumer(**connection.options) as consumer:
            consumer.assign(found)  # else it learns of one topic at a time, each for a pause of 100 ms
            for tp, end in (await consumer.end_offsets(found)).items():
                offsets.setdefault(tp.topic, {})[tp.partition] = end
    return offsets


async def to_the_end(
    connection: Connection, consumer: AIOKafkaConsumer, starts: Mapping[TopicPartition, int]
) -> AsyncIterator[tuple[TopicPartition, list[Any]]]:
    """Every record from the starts on, a chunk of one partition at a time, in order within it."""
    partitions = list(starts)
    consumer.assign(partitions)
    begins, stops = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
    for tp, start in starts.items():
        consumer.seek(tp, max(start, begins[tp]))
    open_ones = {tp for tp in partitions if stops[tp] > begins[tp]}
    moved = time.monotonic()
    while open_ones:
        for tp, records in (await consumer.getmany(*open_ones, timeout_ms=200, max_records=CHUNK)).items():
            yield tp, records
            moved = time.monotonic()
        if time.monotonic() - moved > SILENT_S:
            raise SettingsError(
                f"nothing has come of {', '.join(sorted({tp.topic for tp in open_ones}))} for {SILENT_S:.0f} s: is the "
                f"broker at {connection.bootstrap} away?"
            )
        for tp in list(open_ones):
            if await consumer.position(tp) >= connection.end(stops[tp], consumer.highwater(tp)):
                open_ones.remove(tp)


async def newest(connection: Connection, topic: TopicSpec[E]) -> dict[str, E]:
    """A compacted topic: the newest value of each key, deleted ones left out. What is none of the topic's is left out
    with a line on stderr: others may write there."""
    decode = codec_of(topic.value).decode
    raw: dict[str, bytes | None] = {}
    name = connection.settings.topic_prefix + topic.name
    await rights.check(connection, rights.Needed({name: frozenset({rights.READ})}))
    partitions = await partitions_of(connection, name)
    if partitions:
        options = {**connection.options, "isolation_level": connection.isolation, "auto_offset_reset": "earliest"}
        async with AIOKafkaConsumer(**options) as consumer:
            async for _, records in to_the_end(connection, consumer, dict.fromkeys(partitions, 0)):
                raw.update({(r.key or b"").decode("utf-8", "backslashreplace"): r.value for r in records})
    found: dict[str, E] = {}
    for key, value in sorted(raw.items()):
        if value is not None:
            try:
                found[key] = decode(value)
            except (ValueError, RecursionError) as error:  # pydantic's and msgspec's
                print(f"{name} has something else under {key[:100]!r}: {explain(error)}", file=sys.stderr)
    return found
