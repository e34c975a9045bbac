"""Kafka compacts the changelogs while they are written: whoever starts without its folder finds the right state."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported, not listed
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.chaos.conftest import OwnKafka
from tests.rig import Rig, rig_on
from tests.stream import Reader
from tests.worker import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

BUSY_CLEANER = "log.cleaner.backoff.ms=200"
COMPACTED_AT_ONCE = {
    "segment.ms": "2000",
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "0",
    "delete.retention.ms": "100",
}


@pytest.mark.parametrize("own_kafka", [BUSY_CLEANER], indirect=True)
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_compacted_changelog_gives_the_right_state_to_a_cold_start(
    own_kafka: OwnKafka, tmp_path: Path, guarantee: str
) -> None:
    with rig_on(own_kafka.broker, tmp_path) as rig:
        worker = rig.worker("a", guarantee=guarantee).start()
        rig.deploy()
        changelogs = [f"{rig.prefix}app-{table}-changelog" for table in ("sessions", "positions")]
        for name in changelogs:
            compact_at_once(rig, name)
        with rig.sender(rate=1000):
            for _ in range(3):
                rig.wait_progress(8000)
                for name in changelogs:
                    until(partial(compacted, rig, name), 60, what=f"{name} is compacted", alive=[worker])
                worker.kill()
                shutil.rmtree(Path(worker.environment["HOMUNCULUS_DATA_DIR"]))
                worker.start().wait_ready()
        rig.assert_exact(repeated=guarantee == "at_least_once")


def compact_at_once(rig: Rig, topic: str) -> None:
    """As soon as the cleaner finds something to do."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in COMPACTED_AT_ONCE.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, rig.topic(topic), incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": rig.broker.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)


def compacted(rig: Rig, topic: str) -> bool:
    """Whether fewer than a third of the records that a topic ever had are still there."""
    reader = Reader(rig.broker.bootstrap, rig.topic(topic))
    try:
        left = reader.catch_up()
        return left < sum(reader.positions.values()) / 3
    finally:
        reader.close()
