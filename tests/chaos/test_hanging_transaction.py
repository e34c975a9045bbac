"""A transaction that its coordinator knows nothing of, as a broker that stops under load leaves one now and then.

Then a commit's markers are missing although the coordinator takes them for written: nobody ends that transaction, and
what comes after it stays out of sight.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition

from core.settings import Settings
from engine.connection import connect
from engine.producer import Producer
from tests.chaos.conftest import OwnKafka
from tests.rig import Rig, rig_on
from tests.worker import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

LETS_IT_HANG = "transaction.partition.verification.enable=false"
"""Kafka checks with the coordinator before it takes a transactional record; this one doesn't."""


@pytest.mark.parametrize("own_kafka", [LETS_IT_HANG], indirect=True)
async def test_what_hangs_is_never_believed_and_holds_nothing_up(own_kafka: OwnKafka, tmp_path: Path) -> None:
    with rig_on(own_kafka.broker, tmp_path, partitions=2) as rig:
        worker = rig.worker("a").start()
        rig.deploy()
        sender = rig.sender().send(1000)
        rig.wait_predictions()
        assert worker.terminate() == 0

        await leave_hanging(rig)
        sender.send(1000)
        worker.start()
        until(worker.ready, 60, what="the worker opens behind the hanging transaction", alive=[worker])
        sender.send(1000)
        rig.assert_exact()


@pytest.mark.parametrize("own_kafka", [LETS_IT_HANG], indirect=True)
@pytest.mark.parametrize("name", ["a", "somebody"])
async def test_a_lock_that_nobody_would_ever_open_is_opened(own_kafka: OwnKafka, tmp_path: Path, name: str) -> None:
    with rig_on(own_kafka.broker, tmp_path, partitions=2) as rig:
        worker = rig.worker("a").start()
        rig.deploy()
        sender = rig.sender().send(1000)
        rig.wait_predictions()
        assert worker.terminate() == 0

        await leave_locked(rig, name)
        sender.send(1000)
        worker.start()
        until(worker.ready, 60, what="the worker opens in spite of the lock", alive=[worker])
        rig.assert_exact()


@pytest.mark.parametrize("own_kafka", [LETS_IT_HANG], indirect=True)
@pytest.mark.parametrize("who", ["its next process", "another worker"])
def test_what_a_worker_was_told_to_be_committed_stays(own_kafka: OwnKafka, tmp_path: Path, who: str) -> None:
    """Its outputs have been seen: with the markers of its state missing it's one commit all the same."""
    with rig_on(own_kafka.broker, tmp_path, partitions=2) as rig:
        worker = rig.worker("a", app="tests.forgetful.app").start()
        rig.deploy()
        sender = rig.sender().send(1000)
        rig.wait_predictions()

        forget = rig.folder / "data-a" / "forget"
        forget.touch()
        sender.send(1000)
        rig.wait_predictions()
        worker.kill()
        forget.unlink()
        worker = worker.start() if who == "its next process" else rig.worker("b").start()
        worker.wait_log("committed, as its coordinator has it", 60)
        sender.send(1000)
        rig.assert_exact(within_s=90)


async def leave_locked(rig: Rig, name: str) -> None:
    """As the worker of that name would, without telling the coordinator: the group's offsets of both partitions are
    about to change, for ever."""
    app_id = f"{rig.prefix}app"
    settings = Settings(app_id=app_id, topic_prefix=rig.prefix)
    producer = Producer(await connect(settings, rig.broker.url), f"{app_id}-{name}")
    await producer.start()
    await producer._producer.begin_transaction()
    await producer._lock((-1, "", None), {TopicPartition(rig.topic("observations"), n): 1 for n in range(2)})
    await producer.stop()


async def leave_hanging(rig: Rig) -> None:
    """Writes as the owner of partition 0 would, without telling the coordinator: a prediction that nobody asked for,
    and the marker of a state that never was."""
    app_id = f"{rig.prefix}app"
    lies = {
        rig.topic("predictions"): (b"s0", {"id": "lie", "event_id": "lie", "session": "s0", "version": "1"}),
        rig.topic(f"{app_id}-positions-changelog"): (
            b"marker",
            {"incarnation": "lie", "positions": {}, "watermark": 0},
        ),
    }
    producer = AIOKafkaProducer(bootstrap_servers=rig.broker.bootstrap, transactional_id=f"{app_id}-0")
    await producer.start()
    await producer.begin_transaction()
    for topic, (key, value) in lies.items():
        producer._txn_manager._txn_partitions.add(TopicPartition(topic, 0))  # it believes that the coordinator knows
        await producer.send_and_wait(topic, json.dumps(value).encode(), key, partition=0)
    await producer.stop()  # without a word to the coordinator
