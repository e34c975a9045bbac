"""Topics as they must be: missing ones are created, existing ones are checked, none is ever changed.

Topics are listed, never asked for by name: where a broker creates topics by itself, the question alone would create one
with the broker's partition count.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.client import CoordinationType
from aiokafka.errors import KafkaError, NotControllerError, TopicAlreadyExistsError, for_code
from aiokafka.structs import OffsetAndMetadata

from core.errors import RightsError, SettingsError, TopicError
from core.settings import Settings
from core.topics import Cleanup, Direction, TopicSpec
from engine.admission import REFUSED
from engine.rights import coordinator

log = logging.getLogger(__name__)

REQUEST_S: Final = 10.0
"""Seconds that one request may take before it is tried again."""
RETRY_S: Final = 0.2
"""Seconds between two looks at the topics."""
RECONNECT_S: Final = 0.5
"""Seconds between two attempts to reach the broker."""
CHECKED: Final = ("cleanup.policy", "max.message.bytes")
"""The topic configs that can lose or block records when they are wrong."""


class Shape(NamedTuple):
    """What a broker says of a topic."""

    partitions: int
    ready: bool
    """Whether each partition has a leader that takes requests."""


class TopicAdmin:
    """A connection for looking at topics and creating them.

    bootstrap: host:port,... ; connection: what aiokafka's clients need beyond it (security_protocol, ssl_context,
    sasl_*). Raises KafkaError or TimeoutError when the broker can't be reached.
    """

    def __init__(self, bootstrap: str, connection: Mapping[str, Any] | None = None) -> None:
        self.client = AIOKafkaAdminClient(
            bootstrap_servers=bootstrap, request_timeout_ms=int(REQUEST_S * 1000), **(connection or {})
        )

    async def __aenter__(self) -> Self:
        try:
            await self.client.start()
        except BaseException:
            await self.client.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.close()

    async def shapes(self) -> dict[str, Shape]:
        """Every topic that this connection may see."""
        return {
            topic["topic"]: Shape(
                len(topic["partitions"]),
                topic["error_code"] == 0
                and all(p["error_code"] == 0 and p["leader"] >= 0 for p in topic["partitions"]),
            )
            for topic in await self.client.describe_topics()
        }

    async def create(self, topics: list[NewTopic]) -> dict[str, tuple[type[KafkaError], str]]:
        """Creates what it can. Returns the error and the broker's words for each topic that it did not create."""
        if (await self.client.describe_cluster())["controller_id"] < 0:  # a broker that is still starting
            return {topic.name: (NotControllerError, "the cluster has no controller yet") for topic in topics}
        answer = await self.client.create_topics(topics, timeout_ms=int(REQUEST_S * 1000))
        return {
            name: (for_code(code), (message or for_code(code).__name__).rstrip("."))
            for name, code, message in answer.topic_errors
            if code
        }

    async def extend(self, names: Iterable[str], partitions: int) -> None:
        """Gives topics more partitions. Raises RightsError, KafkaError."""
        wanted = {name: NewPartitions(partitions) for name in names}
        try:
            if wanted:
                await self.client.create_partitions(wanted)
            shapes = await self.shapes()
            while any(shapes[name].partitions < partitions for name in wanted):
                await asyncio.sleep(RETRY_S)
                shapes = await self.shapes()
        except REFUSED as error:
            raise RightsError(
                f"the broker doesn't let us give {', '.join(wanted)} {partitions} partitions: grant ALTER on them, or "
                "do it yourself with kafka-topics.sh --alter"
            ) from error

    async def configs(self, names: Iterable[str]) -> dict[str, dict[str, str]] | None:
        """name -> the configs in CHECKED. None where the broker describes none (the embedded one hangs up)."""
        wanted = [ConfigResource(ConfigResourceType.TOPIC, name, dict.fromkeys(CHECKED, "")) for name in names]
        try:
            answers = await self.client.describe_configs(wanted)
        except (KafkaError, TimeoutError) as error:
            log.info("the broker describes no topic configuration (%s): cleanup policies stay unchecked", error)
            return None
        return {
            resource["resource_name"]: {
                entry["config_names"]: entry["config_value"] for entry in resource["config_entries"]
            }
            for answer in answers
            for resource in answer.to_object()["resources"]
            if resource["error_code"] == 0  # a topic whose configs we may not see is not wrong
        }

    async def group_offsets(
        self, group: str, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has noted; a cluster that never had a group is given time to make its first coordinator."""
        node = await coordinator(self.client._client, CoordinationType.GROUP, group)
        noted: dict[TopicPartition, OffsetAndMetadata] = await self.client.list_consumer_group_offsets(
            group, node, partitions
        )
        return noted


async def ensure_topics(
    bootstrap: str,
    specs: Iterable[TopicSpec[Any]],
    settings: Settings,
    connection: Mapping[str, Any] | None = None,
    within_s: float = 30.0,
) -> list[str]:
    """Creates the topics that are missing, checks those that exist, and waits until the broker shows them all.

    bootstrap: host:port,... without kafka:// ; specs: topics and changelogs, without settings.topic_prefix, which is
    added here. Several workers may do this at once. Returns the names of the topics that this call created.

    Raises TopicError when a topic has another partition count or cleanup policy than ours or the broker refuses to
    create it, SettingsError when the broker can't be reached or doesn't show the topics within within_s.
    """
    wanted = {settings.topic_prefix + spec.name: spec for spec in specs}
    created: list[str] = []
    pending = "it has not answered"
    try:
        async with asyncio.timeout(within_s):
            while True:
                try:
                    async with TopicAdmin(bootstrap, connection) as admin:
                        shapes = await admin.shapes()
                        while unready := _unready(shapes, wanted, settings):
                            pending = f"not there yet: {', '.join(unready)}"
                            created += await _create(admin, [n for n in unready if n not in shapes], wanted, settings)
                            await asyncio.sleep(RETRY_S)
                            shapes = await admin.shapes()
                        await _check_configs(admin, [n for n in wanted if n not in created], wanted, settings)
                        return created
                except (KafkaError, OSError, TimeoutError) as error:
                    pending = str(error) or type(error).__name__
                await asyncio.sleep(RECONNECT_S)
    except TimeoutError:
        raise SettingsError(
            f"HOMUNCULUS_BROKER: {bootstrap} doesn't have our topics ready within {within_s:g} s ({pending}); "
            "give the address of a running broker"
        ) from None
    finally:
        if created:
            log.info("created topics %s (%d partitions each)", ", ".join(sorted(created)), settings.partitions)


def _unready(shapes: Mapping[str, Shape], wanted: Iterable[str], settings: Settings) -> list[str]:
    """The topics that don't have a leader for each partition yet. Raises TopicError for a wrong partition count."""
    for name in wanted:
        has = shapes[name].partitions if name in shapes else 0
        if has not in (0, settings.partitions):
            raise TopicError(
                f"topic {name} has {has} partitions but HOMUNCULUS_PARTITIONS is {settings.partitions}: all topics of "
                f"an application have the same count. Set HOMUNCULUS_PARTITIONS={has} if its other topics have as "
                "many, or give the application topics of its own with HOMUNCULUS_TOPIC_PREFIX; adding partitions "
                "would part sessions from their state"
            )
    return [name for name in wanted if name not in shapes or not shapes[name].ready]


async def _create(
    admin: TopicAdmin, missing: Iterable[str], wanted: Mapping[str, TopicSpec[Any]], settings: Settings
) -> list[str]:
    """Asks for the missing topics. Returns those that this call created; raises TopicError for a final refusal."""
    topics = [
        NewTopic(
            name,
            settings.partitions,
            settings.replication,
            topic_configs=wanted[name].config(int(settings.max_record)),
        )
        for name in missing
    ]
    refused = await admin.create(topics) if topics else {}
    for name, (error, words) in refused.items():
        if error in REFUSED:
            raise RightsError(
                f"topic {name} is not there, and the broker doesn't let us make it: grant CREATE on it or on the "
                f"cluster, or create it yourself with {settings.partitions} partitions and "
                f"cleanup.policy={wanted[name].cleanup.value} (docs/security.md)"
            )
        if error is not TopicAlreadyExistsError and not error.retriable:
            raise TopicError(
                f"topic {name} can't be created: {words}. Change HOMUNCULUS_REPLICATION (now "
                f"{settings.replication}) or the worker's rights, or create it yourself with {settings.partitions} "
                f"partitions and cleanup.policy={wanted[name].cleanup.value}"
            )
    return [topic.name for topic in topics if topic.name not in refused]


async def _check_configs(
    admin: TopicAdmin, others: list[str], wanted: Mapping[str, TopicSpec[Any]], settings: Settings
) -> None:
    """Raises TopicError when a topic that somebody else made would lose records, or block those that we write."""
    configs = await admin.configs(others) if others else None
    for name, config in (configs or {}).items():
        spec = wanted[name]
        policy = config.get("cleanup.policy", spec.cleanup.value)
        if policy != spec.cleanup.value:
            loses = "its oldest keys" if spec.cleanup is Cleanup.COMPACT else "all but the newest record of each key"
            raise TopicError(
                f"topic {name} has cleanup.policy={policy} and would lose {loses}; it must be {spec.cleanup.value}: "
                f"kafka-configs.sh --alter --topic {name} --add-config cleanup.policy={spec.cleanup.value}"
            )
        largest = int(config.get("max.message.bytes", settings.max_record))
        if spec.direction is not Direction.IN and largest < settings.max_record:
            raise TopicError(
                f"topic {name} takes records of at most {largest} bytes (max.message.bytes) but HOMUNCULUS_MAX_RECORD "
                f"is {int(settings.max_record)}: raise the one or lower the other"
            )
