"""What the broker's ACLs must let us do: looked at before it is needed, and told by name where it is missing.

Topics and the group say themselves what we may do with them; a transactional id is tried. docs/security.md has the
same list with the commands that grant it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    for_code,
)
from aiokafka.protocol.transaction import InitProducerIdRequest

from core.errors import RightsError
from core.topics import DEPLOYMENTS, RULES, Direction, TopicSpec
from engine.connection import Connection
from engine.producer import TRANSACTION_S
from engine.protocol import GroupRightsRequest, TopicRightsRequest

log = logging.getLogger(__name__)

READ: Final = "READ"
WRITE: Final = "WRITE"
DESCRIBE: Final = "DESCRIBE"
_BITS: Final = {READ: 1 << 3, WRITE: 1 << 4, DESCRIBE: 1 << 8}
_UNTOLD: Final = -(1 << 31)
"""What a broker answers that doesn't say what we may do."""
_LOOK_S: Final = 20.0
_AGAIN_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Needed:
    """What somebody is about to do."""

    topics: Mapping[str, frozenset[str]]
    """As the broker names them -> operations."""
    group: str | None = None
    """A consumer group that is joined, or whose offsets are written."""
    transactional_id: str | None = None
    """One that is written under. It is taken: whoever has it is fenced."""
    prefix: str | None = None
    """What the transactional ids of workers begin with: a dead one's may have to be taken over."""


def of_worker(
    specs: Iterable[TopicSpec[Any]],
    sources: Iterable[str],
    outputs: Iterable[str],
    connection: Connection,
) -> Needed:
    """What a worker does. specs: every topic that it knows; sources, outputs: what its agents read and write, as the
    broker names it."""
    settings = connection.settings
    topics: dict[str, set[str]] = {settings.topic_prefix + spec.name: {DESCRIBE} for spec in specs}
    for names, operation in ((sources, READ), (outputs, WRITE)):
        for name in names:
            topics.setdefault(name, {DESCRIBE}).add(operation)
    for spec in specs:
        ours = topics[settings.topic_prefix + spec.name]
        if spec.direction is not Direction.IN:
            ours.add(WRITE)
        if spec.direction is Direction.INTERNAL or spec.name in {DEPLOYMENTS.name, RULES.name}:
            ours.add(READ)
    return Needed(
        {name: frozenset(operations) for name, operations in topics.items()},
        settings.app_id,
        prefix=f"{settings.app_id}-" if connection.transactional else None,
    )


async def check(connection: Connection, needed: Needed) -> None:
    """Raises RightsError that names everything that is missing. Topics that don't exist are left out.

    A broker that knows no transactions is not asked: it has no ACLs that we know of. Where the answer fails to come the
    work may begin: it tells by itself what it isn't let do.
    """
    if not connection.idempotent:
        return
    client = AIOKafkaClient(**connection.options)
    lacking: list[str] = []
    try:
        await client.bootstrap()
        lacking = [one async for one in _lacking(client, needed)]
    except (KafkaError, OSError, TimeoutError, NotImplementedError) as error:
        log.warning("The broker doesn't say what we may do there (%r)", error)
    finally:
        await client.close()
    if lacking:
        who = connection.security.get("sasl_plain_username")
        user = f"user {who!r}" if who else "the user of this connection"
        raise RightsError(
            f"{user} lacks rights on the broker: {'; '.join(lacking)} (docs/security.md says how to grant)"
        )


async def may(connection: Connection, operation: str, topic: str) -> bool:
    """Whether the broker lets us do something with a topic, as far as it says."""
    try:
        await check(connection, Needed({topic: frozenset({operation})}))
    except RightsError:
        return False
    return True


async def _lacking(client: AIOKafkaClient, needed: Needed) -> AsyncIterator[str]:
    answer = await client.send(client.get_random_node(), TopicRightsRequest(needed.topics))
    for code, topic, _, _, allowed in sorted(answer.topics, key=lambda one: str(one[1])):
        operations = needed.topics[topic]
        if for_code(code) is TopicAuthorizationFailedError:
            # Who may read or write a topic may also see it.
            missing = operations - {DESCRIBE} or operations
        elif code or allowed == _UNTOLD:
            continue
        else:
            missing = frozenset(one for one in operations if not allowed & _BITS[one])
        if missing:
            yield f"{' and '.join(sorted(missing))} on topic {topic}"
    if needed.group is not None and not await _may_read_group(client, needed.group):
        yield f"READ on consumer group {needed.group}"
    if needed.transactional_id is not None and not await _may_write(client, needed.transactional_id):
        yield f"WRITE on transactional id {needed.transactional_id}"
    # Of all workers' ids none is taken for a trial: its owner would be fenced.
    if needed.prefix is not None and not await _may_write(client, f"{needed.prefix}rights"):
        yield f"WRITE on every transactional id that begins with {needed.prefix} (a prefixed ACL)"


async def _may_read_group(client: AIOKafkaClient, group: str) -> bool:
    try:
        node = await coordinator(client, CoordinationType.GROUP, group)
    except GroupAuthorizationFailedError:
        return False
    answer = await client.send(node, GroupRightsRequest(group), group=ConnectionGroup.COORDINATION)
    [(code, *_, allowed)] = answer.groups
    if for_code(code) is GroupAuthorizationFailedError:
        return False
    return bool(code) or allowed == _UNTOLD or bool(allowed & _BITS[READ])


async def _may_write(client: AIOKafkaClient, transactional_id: str) -> bool:
    try:
        node = await coordinator(client, CoordinationType.TRANSACTION, transactional_id)
    except TransactionalIdAuthorizationFailed:
        return False
    request = InitProducerIdRequest(transactional_id, TRANSACTION_S * 1000)
    answer = await client.send(node, request, group=ConnectionGroup.COORDINATION)
    return for_code(answer.error_code) is not TransactionalIdAuthorizationFailed


async def coordinator(client: AIOKafkaClient, kind: int, key: str) -> int:
    """A cluster that is young has none at first."""
    deadline = time.monotonic() + _LOOK_S
    while True:
        try:
            return int(await client.coordinator_lookup(kind, key))
        except KafkaError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise
        with suppress(KafkaError):
            await client.force_metadata_update()
        await asyncio.sleep(_AGAIN_S)
