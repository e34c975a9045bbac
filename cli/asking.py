"""A request on `control`, and what its owner says to it: the partition of the request's key tells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from core.errors import SettingsError
from core.events import Action
from core.topics import CONTROL, TopicSpec, changelog
from engine import rights
from engine.admin import TopicAdmin
from engine.changelog import POSITIONS
from engine.codec import codec_of
from engine.connection import Connection
from engine.publisher import partition_of

T = TypeVar("T")

WAIT_S: Final = 15.0
"""Seconds that a worker has to answer."""


class Asked(NamedTuple):
    """Where a request stands."""

    source: str
    """TOPIC/PARTITION/OFFSET, as the header `source` of its answers names it."""
    partition: int


async def ask(
    connection: Connection,
    key: str,
    action: Action,
    told_on: Iterable[TopicSpec[Any]],
    answered: Callable[[Any], T | None],
    wait_s: float = WAIT_S,
) -> tuple[Asked, T | None]:
    """Writes the request, and shows what comes of it on these topics to answered, until that returns something.

    Returns None for an answer that did not come in time: the request waits. Raises SettingsError where the broker has
    no such application, or we lack a right.
    """
    prefix = connection.settings.topic_prefix
    control, topics = prefix + CONTROL.name, {prefix + spec.name: spec for spec in told_on}
    read = dict.fromkeys(topics, frozenset({rights.READ}))
    await rights.check(connection, rights.Needed({control: frozenset({rights.WRITE}), **read}))
    partition = partition_of(key.encode(), await _partitions(connection, control, *topics))
    told = [TopicPartition(name, partition) for name in topics]
    async with AIOKafkaConsumer(**connection.options, isolation_level=connection.isolation) as consumer:
        consumer.assign(told)
        for tp, end in (await consumer.end_offsets(told)).items():
            consumer.seek(tp, end)
        asked = await _write(connection, TopicPartition(control, partition), key, action)
        try:
            async with asyncio.timeout(wait_s):
                return asked, await _answer(consumer, topics, asked, answered)
        except TimeoutError:
            return asked, None


async def _answer(
    consumer: AIOKafkaConsumer,
    topics: dict[str, TopicSpec[Any]],
    asked: Asked,
    answered: Callable[[Any], T | None],
) -> T:
    source = ("source", asked.source.encode())
    while True:
        for tp, records in (await consumer.getmany(timeout_ms=500)).items():
            decode = codec_of(topics[tp.topic].value).decode
            for record in records:
                if record.value is None or source not in record.headers:
                    continue
                if (answer := answered(decode(record.value))) is not None:
                    return answer


async def _partitions(connection: Connection, *topics: str) -> int:
    """The partition count of the application's topics. That the application is there is known by a changelog of it,
    where we may see one: with no more rights than are needed we may not."""
    settings = connection.settings
    ours = settings.topic_prefix + changelog(settings.app_id, POSITIONS).name
    async with TopicAdmin(connection.bootstrap, connection.security) as admin:
        shapes = await admin.shapes()
    if not await rights.may(connection, rights.DESCRIBE, ours):
        ours = topics[0]
    if missing := [name for name in (ours, *topics) if name not in shapes]:
        raise SettingsError(
            f"{connection.bootstrap} has no application {settings.app_id!r}, or not all of its topics (missing: "
            f"{', '.join(missing)}). Check "
            f"HOMUNCULUS_APP_ID and HOMUNCULUS_TOPIC_PREFIX{_known(shapes, settings.topic_prefix)}"
        )
    return shapes[topics[0]].partitions


def _known(topics: Iterable[str], prefix: str) -> str:
    """The applications that there are under a prefix, for an error."""
    ending = changelog("", POSITIONS).name
    found = sorted(
        name[len(prefix) : -len(ending)] for name in topics if name.startswith(prefix) and name.endswith(ending)
    )
    return f" (there: {', '.join(found[:5])})" if found else ""


async def _write(connection: Connection, target: TopicPartition, key: str, action: Action) -> Asked:
    # Idempotent where that is known: a repeated write would be a second request.
    producer = AIOKafkaProducer(**connection.options, acks="all", enable_idempotence=connection.idempotent)
    await producer.start()
    try:
        raw = codec_of(Action).encode(action)
        sent = await producer.send_and_wait(target.topic, raw, key=key.encode(), partition=target.partition)
    finally:
        await producer.stop()
    return Asked(f"{sent.topic}/{sent.partition}/{sent.offset}", sent.partition)
