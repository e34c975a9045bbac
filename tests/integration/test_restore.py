"""State that comes back into an application: where its workers go on, and what is refused."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

from engine.archive import Archive
from engine.publisher import partition_of
from engine.schema import HEADER
from tests.integration.test_event_time import LATENESS_MS, Clicks, assert_as_recounted
from tests.rig import Rig
from tests.shop import APP, Shop, wait_committed
from tests.stream import Publisher
from tests.worker import until


@pytest.fixture
def shop(rig: Rig) -> Shop:
    return Shop(rig)


@pytest.mark.long
def test_an_imported_state_goes_on_where_the_file_was_made(shop: Shop) -> None:
    worker = shop.worker()
    shop.order(2000)
    shop.wait_exact()
    saved = shop.done("export", str(shop.file))
    assert saved["records"] >= 40
    shop.order(2000)
    shop.wait_exact()
    assert "stop every worker first" in shop.refused("import", str(shop.file), "--yes")
    assert worker.terminate() == 0
    assert "only with --yes" in shop.refused("import", str(shop.file), "--json")
    assert "Aborted" in shop.command("state", "import", str(shop.file)).stderr
    assert shop.done("import", str(shop.file), "--yes")["imported"]
    assert shop.done("verify", str(shop.file))["ok"]
    worker.start().wait_log("is open")
    shop.wait_exact()
    shop.order(500)
    shop.wait_exact()


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("end", ["killed", "overtaken by a worker"])
def test_an_import_that_does_not_end_leaves_the_state_from_before(rig: Rig, end: str) -> None:
    shop = Shop(rig, sessions=60_000)
    worker = shop.worker()
    shop.order(60_000)
    wait_committed(shop, worker)
    shop.done("export", str(shop.file))
    shop.order(60_000)
    wait_committed(shop, worker)
    assert worker.terminate() == 0
    shop.done("export", str(rig.folder / "later.zip"))
    changelog_topic = f"{rig.prefix}{rig.prefix}app-totals-changelog"
    before = written(rig, changelog_topic)
    importing = shop.begin("state", "import", str(shop.file), "--yes")
    until(lambda: written(rig, changelog_topic) > before + 1000, 60, what="the import is writing")
    importing.send_signal(signal.SIGKILL if end == "killed" else signal.SIGSTOP)
    worker.start()
    until(lambda: worker.log(None).count("is open") >= 2 * rig.partitions, 60, what="it opens", alive=[worker])
    if end != "killed":
        importing.send_signal(signal.SIGCONT)
    said = "".join(importing.communicate(timeout=60))
    assert importing.returncode == (-signal.SIGKILL if end == "killed" else 1), f"it was too quick: {said}"
    assert end == "killed" or "nothing was changed" in said
    wait_committed(shop, worker)
    assert worker.terminate() == 0
    assert shop.done("verify", str(rig.folder / "later.zip"))["ok"], "the state isn't the one from before"
    assert shop.done("import", str(shop.file), "--yes")["imported"]
    worker.start()
    wait_committed(shop, worker)
    assert worker.terminate() == 0
    shop.done("export", str(rig.folder / "last.zip"))
    assert totals_in(rig.folder / "last.zip") == shop.totals


def more_partitions(rig: Rig, count: int) -> None:
    """The rig's topics have more; producers that have been running don't know yet."""
    rig.partitions = count
    rig.publisher = Publisher(rig.broker.bootstrap)


def written(rig: Rig, topic: str) -> int:
    """Offsets of a topic, decided or not."""
    consumer = Consumer(
        {"bootstrap.servers": rig.broker.bootstrap, "group.id": "nobody", "isolation.level": "read_uncommitted"}
    )
    try:
        return sum(consumer.get_watermark_offsets(Place(topic, n), 10)[1] for n in range(rig.partitions))
    finally:
        consumer.close()


def totals_in(file: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    with Archive(file) as archive:
        for one in archive.manifest.state:
            for key, value in archive.pairs("totals", one.partition):
                found[key.decode()] = json.loads(value[HEADER:])
    return found


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_live_application_gets_more_partitions(rig: Rig) -> None:
    shop = Shop(rig, sessions=300)
    worker = shop.worker()
    shop.order(3000)
    shop.wait_exact()
    assert worker.terminate() == 0
    shop.order(10)
    shop.done("export", str(rig.folder / "early.zip"))
    more = {"partitions": 12}
    assert "hasn't seen" in shop.refused("import", str(rig.folder / "early.zip"), "--rekey", "--yes", **more)
    worker.start()
    wait_committed(shop, worker)
    assert worker.terminate() == 0
    shop.done("export", str(shop.file))
    assert "--rekey places" in shop.refused("import", str(shop.file), "--yes", **more)
    done = shop.done("import", str(shop.file), "--rekey", "--yes", **more)
    assert done["partitions"] == 12
    more_partitions(rig, 12)
    again = shop.done("export", str(rig.folder / "after.zip"))
    assert totals_in(rig.folder / "after.zip") == shop.totals
    with Archive(rig.folder / "after.zip") as archive:
        for number in range(12):
            for key, _ in archive.pairs("totals", number):
                assert partition_of(key, 12) == number
    assert again["partitions"] == 12
    shop.worker("b")
    shop.order(3000)
    shop.wait_exact()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_windows_timers_and_patterns_move_with_their_sessions(rig: Rig) -> None:
    shop, clicks = Shop(rig, app="tests.timely.app"), Clicks(rig, 1200)
    late: dict[str, Any] = {"allowed_lateness": LATENESS_MS / 1e3}
    worker = shop.worker(**late)
    clicks.send(600)
    wait_committed(shop, worker, "clicks")
    assert worker.terminate() == 0
    shop.done("export", str(shop.file))
    assert shop.done("import", str(shop.file), "--rekey", "--yes", partitions=8, **late)["written"] > 30
    more_partitions(rig, 8)
    worker = shop.worker("b", **late)
    clicks.send(600)
    clicks.end()
    assert_as_recounted(rig, clicks, [worker])


@pytest.mark.long
def test_files_that_do_not_fit_are_refused_with_what_would(shop: Shop) -> None:
    worker = shop.worker()
    shop.order(200)
    shop.wait_exact()
    assert worker.terminate() == 0
    shop.done("export", str(shop.file))
    other = f"{shop.rig.prefix}other"
    said = shop.refused("import", str(shop.file), "--yes", app_id=other)
    assert f"--application {shop.rig.prefix}app" in said
    assert shop.done("import", str(shop.file), "--yes", "--application", f"{shop.rig.prefix}app", app_id=other)
    copy = shop.rig.worker("c", app=APP, app_id=other).start()
    shop.order(100)
    shop.wait_exact()
    assert copy.terminate() == 0
    broken = shop.rig.folder / "broken.zip"
    broken.write_bytes(shop.file.read_bytes()[:-100])
    for command in ("verify", "import"):
        shop.refused(command, str(broken))
    assert "can't be read" in shop.refused("verify", str(shop.rig.folder / "none.zip"))
