"""Topics at start: missing ones appear as they must be, wrong ones are an error that says what to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka.admin import NewTopic

from core.errors import SettingsError, TopicError
from core.settings import Settings
from core.topics import ALL, DEPLOYMENTS, OBSERVATIONS, PREDICTIONS, TopicSpec, changelog
from engine.admin import Shape, TopicAdmin, ensure_topics
from engine.embedded import EmbeddedBroker
from tests.kafka import Broker, free_port

SPECS = (*ALL, changelog("shop", "sessions"))


@pytest.fixture
def settings(prefix: str) -> Settings:
    return Settings(topic_prefix=prefix, partitions=3)


@pytest.fixture
async def admin(broker: Broker) -> AsyncIterator[TopicAdmin]:
    async with TopicAdmin(broker.bootstrap) as admin:
        yield admin


async def make(admin: TopicAdmin, topic: NewTopic) -> None:
    """Creates a topic as somebody else would have, long before us: when this returns, the broker shows it."""
    assert await admin.create([topic]) == {}
    async with asyncio.timeout(10):
        while topic.name not in await admin.shapes():
            await asyncio.sleep(0.02)


async def test_every_topic_is_there_with_our_partitions_once_it_returns(
    broker: Broker, admin: TopicAdmin, settings: Settings
) -> None:
    created = await ensure_topics(broker.bootstrap, SPECS, settings)
    assert sorted(created) == sorted(settings.topic_prefix + spec.name for spec in SPECS)
    shapes = await admin.shapes()
    assert {name: shapes[name] for name in created} == dict.fromkeys(created, Shape(partitions=3, ready=True))


async def test_a_second_start_creates_nothing(broker: Broker, settings: Settings) -> None:
    await ensure_topics(broker.bootstrap, SPECS, settings)
    assert await ensure_topics(broker.bootstrap, SPECS, settings) == []


async def test_workers_that_start_at_once_create_each_topic_once(broker: Broker, settings: Settings) -> None:
    created = await asyncio.gather(*(ensure_topics(broker.bootstrap, SPECS, settings) for _ in range(4)))
    assert sorted(name for names in created for name in names) == sorted(
        settings.topic_prefix + spec.name for spec in SPECS
    )


async def test_a_topic_with_another_partition_count_is_named_with_what_to_do(
    broker: Broker, admin: TopicAdmin, settings: Settings
) -> None:
    name = settings.topic_prefix + OBSERVATIONS.name
    await make(admin, NewTopic(name, 5, 1))
    with pytest.raises(
        TopicError, match=rf"topic {name} has 5 partitions but HOMUNCULUS_PARTITIONS is 3.*_PARTITIONS=5"
    ):
        await ensure_topics(broker.bootstrap, SPECS, settings)


async def test_looking_at_topics_creates_none(broker: Broker, admin: TopicAdmin, settings: Settings) -> None:
    name = settings.topic_prefix + OBSERVATIONS.name
    await make(admin, NewTopic(name, 5, 1))
    with pytest.raises(TopicError):
        await ensure_topics(broker.bootstrap, SPECS, settings)
    assert [topic for topic in await admin.shapes() if topic.startswith(settings.topic_prefix)] == [name]


@pytest.mark.parametrize(
    ("spec", "policy", "loses"),
    [
        (DEPLOYMENTS, "delete", "its oldest keys"),
        (DEPLOYMENTS, "compact,delete", "its oldest keys"),
        (PREDICTIONS, "compact", "all but the newest record of each key"),
    ],
)
async def test_a_topic_that_would_lose_records_is_refused(
    kafka: Broker, settings: Settings, spec: TopicSpec[Any], policy: str, loses: str
) -> None:
    async with TopicAdmin(kafka.bootstrap) as admin:
        name = settings.topic_prefix + spec.name
        await make(admin, NewTopic(name, 3, 1, topic_configs={"cleanup.policy": policy}))
    with pytest.raises(TopicError, match=rf"topic {name} has cleanup\.policy={policy} and would lose {loses}"):
        await ensure_topics(kafka.bootstrap, SPECS, settings)


async def test_the_policies_and_sizes_are_the_specs(kafka: Broker, settings: Settings) -> None:
    created = await ensure_topics(kafka.bootstrap, SPECS, settings)
    async with TopicAdmin(kafka.bootstrap) as admin:
        configs = await admin.configs(created)
    assert configs == {
        settings.topic_prefix + spec.name: {
            "cleanup.policy": spec.cleanup.value,
            "max.message.bytes": str(int(settings.max_record) + 65_536),
        }
        for spec in SPECS
    }


async def test_an_output_topic_too_narrow_for_our_largest_record_is_refused(kafka: Broker, settings: Settings) -> None:
    name = settings.topic_prefix + PREDICTIONS.name
    async with TopicAdmin(kafka.bootstrap) as admin:
        await make(admin, NewTopic(name, 3, 1, topic_configs={"max.message.bytes": "1000"}))
    with pytest.raises(TopicError, match=rf"topic {name} takes records of at most 1000 bytes.*HOMUNCULUS_MAX_RECORD"):
        await ensure_topics(kafka.bootstrap, SPECS, settings)


async def test_a_replication_that_the_cluster_can_not_give_is_refused(kafka: Broker, prefix: str) -> None:
    settings = Settings(topic_prefix=prefix, partitions=3, replication=3)
    with pytest.raises(TopicError, match=r"can't be created: .*HOMUNCULUS_REPLICATION \(now 3\)"):
        await ensure_topics(kafka.bootstrap, SPECS, settings)


async def test_a_broker_that_describes_no_configuration_is_taken_at_its_word(
    embedded: Broker, settings: Settings
) -> None:
    name = settings.topic_prefix + DEPLOYMENTS.name
    async with TopicAdmin(embedded.bootstrap) as admin:
        await make(admin, NewTopic(name, 3, 1, topic_configs={"cleanup.policy": "delete"}))
        assert await admin.configs([name]) is None
    created = await ensure_topics(embedded.bootstrap, SPECS, settings)
    assert len(created) == len(SPECS) - 1


async def test_no_broker_is_an_error_that_names_the_setting_and_the_address(settings: Settings) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    with pytest.raises(SettingsError, match=rf"HOMUNCULUS_BROKER: {nobody} .*within 1 s"):
        await ensure_topics(nobody, SPECS, settings, within_s=1)


async def test_a_broker_that_comes_up_late_is_waited_for(settings: Settings) -> None:
    late = EmbeddedBroker(free_port())
    asked = asyncio.create_task(ensure_topics(late.bootstrap, SPECS, settings))
    try:
        await asyncio.wait([asked], timeout=0.2)
        assert not asked.done()
        await late.start()
        assert len(await asked) == len(SPECS)
    finally:
        asked.cancel()
        await late.stop()
