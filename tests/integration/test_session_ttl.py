"""SESSION_TTL: a session that is silent for longer, in event time, is forgotten wherever it was kept."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from tests import tally
from tests.kafka import Broker
from tests.rig import Rig, rig_on
from tests.stream import EPOCH_MS, Sent, observation
from tests.worker import Worker, until

TTL_S: Final = 600
SILENT: Final = [f"silent{n}" for n in range(40)]
HOT: Final = 10
"""Of them are in memory, the others on disk alone."""
AWAKE: Final = "awake"
LATER_MS: Final = EPOCH_MS + 3_600_000


def test_a_silent_session_is_forgotten_by_event_time_and_stays_so_after_a_restart_without_its_folder(
    kafka: Broker, tmp_path: Path
) -> None:
    with rig_on(kafka, tmp_path, partitions=1) as rig:
        worker = rig.worker("a", session_ttl=TTL_S, hot_sessions=HOT).start()
        rig.deploy()
        send(rig, *(Sent(f"{name}-1", name, EPOCH_MS + n, 1.0) for n, name in enumerate(SILENT)))
        assert worker.get(f"/tables/sessions/{SILENT[0]}").json()["count"] == 1

        pass_time(rig, worker)
        assert_only_the_awake_one_is_there(worker)

        worker.kill()
        shutil.rmtree(Path(worker.environment["HOMUNCULUS_DATA_DIR"]))
        worker.start().wait_ready()
        assert_only_the_awake_one_is_there(worker)
        # By its time this event could have joined its session's first: that it doesn't shows that nothing was left.
        send(rig, Sent("silent0-2", SILENT[0], EPOCH_MS + 1000, 2.0))
        answers = {r.json["event_id"]: tally.decode(r.json) for r in rig.reader("predictions").records}
        assert answers["silent0-2"]["count"] == 1
        rig.terminate()


def pass_time(rig: Rig, worker: Worker) -> None:
    """Moves event time on by single events of one session, until no other has a value; and once more, since what is
    answered after that is committed with it or behind it."""
    number = 0

    def all_gone() -> bool:
        nonlocal number
        number += 1
        send(rig, Sent(f"awake-{number}", AWAKE, LATER_MS + number, 1.0))
        return all(worker.get(f"/tables/sessions/{name}").status == 404 for name in SILENT)

    until(all_gone, 30, what="every silent session is forgotten", alive=[worker])
    assert all_gone()


def assert_only_the_awake_one_is_there(worker: Worker) -> None:
    page = worker.get("/tables/sessions?limit=1000").json()
    assert [item["key"] for item in page["items"]] == [AWAKE]


def send(rig: Rig, *sent: Sent) -> None:
    """Sends them, and waits until they have been answered."""
    before = rig.reader("predictions").catch_up()
    for one in sent:
        rig.publisher.send(rig.topic("observations"), one.session.encode(), observation(one))
    rig.publisher.flush()
    rig.wait_records("predictions", before + len(sent))
