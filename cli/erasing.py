"""`faust -A app tables erase SESSION`: asks the owner of the session's partition, and waits for its word."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from typing import Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from cli.report import Report
from core.erasure import ERASED, pseudonym
from core.errors import SettingsError, UsageError
from core.events import Action, Alert
from core.topics import ALERTS, CONTROL, changelog
from engine import rights
from engine.admin import TopicAdmin
from engine.changelog import POSITIONS
from engine.codec import codec_of
from engine.connection import Connection
from engine.publisher import partition_of

WAIT_S: Final = 15.0
"""Seconds that a worker has to say that it is done."""
LONGEST: Final = 1000
"""Characters of a session."""
ELSEWHERE: Final = "Input topics, outputs already sent and backups keep what they have (docs/state.md)."


async def erase(connection: Connection, session: str, wait_s: float = WAIT_S) -> Report:
    """Writes the request, and reports what the owner erased, or that the request waits for one.

    Raises UsageError for what can't be a session, SettingsError where the broker has no such application.
    """
    if not 1 <= len(session) <= LONGEST:
        raise UsageError(f"a session has 1 to {LONGEST:,} characters, not {len(session):,}")
    prefix = connection.settings.topic_prefix
    control, alerts = prefix + CONTROL.name, prefix + ALERTS.name
    needed = {control: frozenset({rights.WRITE}), alerts: frozenset({rights.READ})}
    await rights.check(connection, rights.Needed(needed))
    partition = partition_of(session.encode(), await _partitions(connection, control, alerts))
    told = TopicPartition(alerts, partition)
    async with AIOKafkaConsumer(**connection.options, isolation_level=connection.isolation) as consumer:
        consumer.assign([told])
        consumer.seek(told, (await consumer.end_offsets([told]))[told])
        request = await _request(connection, TopicPartition(control, partition), session)
        document = {"subject": pseudonym(session), "request": request}
        try:
            async with asyncio.timeout(wait_s):
                alert = await _answer(consumer, request)
        except TimeoutError:
            return Report(
                document | {"state": "waiting"},
                [
                    f"Not done yet: no worker has answered within {wait_s:g} s. The request waits as {request}, and is "
                    f"done once a worker has partition {partition}; an alert about {document['subject']} will say so.",
                    ELSEWHERE,
                ],
            )
    values: dict[str, int] = alert.evidence["values"]
    held = ", ".join(f"{table} {count}" for table, count in sorted(values.items()) if count)
    return Report(
        document | {"state": "erased", "values": values},
        [f"Erased: {held or 'no table held anything of it'}. ({request}; alert {document['subject']})", ELSEWHERE],
    )


async def _partitions(connection: Connection, *topics: str) -> int:
    """The partition count of the application's topics."""
    settings = connection.settings
    ours = settings.topic_prefix + changelog(settings.app_id, POSITIONS).name
    async with TopicAdmin(connection.bootstrap, connection.security) as admin:
        shapes = await admin.shapes()
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


async def _request(connection: Connection, target: TopicPartition, session: str) -> str:
    """Writes it. Returns where it stands, as its answer names it."""
    action = Action(action="erase", session=session, id=uuid.uuid4().hex)
    producer = AIOKafkaProducer(**connection.options, acks="all")
    await producer.start()
    try:
        raw = codec_of(Action).encode(action)
        sent = await producer.send_and_wait(target.topic, raw, key=session.encode(), partition=target.partition)
    finally:
        await producer.stop()
    return f"{sent.topic}/{sent.partition}/{sent.offset}"


async def _answer(consumer: AIOKafkaConsumer, request: str) -> Alert:
    decode = codec_of(ALERTS.value).decode
    while True:
        for records in (await consumer.getmany(timeout_ms=500)).values():
            for record in records:
                alert = decode(record.value)
                if alert.kind == ERASED and alert.evidence.get("request") == request:
                    return alert
