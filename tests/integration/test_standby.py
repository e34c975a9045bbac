"""A worker that keeps copies of what another one owns takes over where it was, not where changelogs begin."""

from __future__ import annotations

import re
import time

from tests.rig import Rig
from tests.worker import Worker, tails, until

ASKED = 20
"""Sessions whose values are compared: about half of them are the owner's."""
REPLAYED = re.compile(r"Partition \d+ is open: .*?, (\d+) records replayed")


def test_a_takeover_with_a_copy_replays_only_the_tail(rig: Rig) -> None:
    workers = [rig.worker(name, session_timeout=3, standbys=1, worker_id=None) for name in ("a", "b")]
    for worker in workers:
        worker.start()
    rig.deploy()
    sender = rig.sender(rate=4000, sessions=400).send(8000)
    rig.wait_predictions()
    owner, heir = workers
    answered = time.monotonic()
    until(lambda: current(owner, answered) and current(heir, answered), 30, what="copies are current", alive=workers)
    already = len(replays(heir))
    value = {
        session: heir.get(f"/tables/sessions/{session}").json()
        for session in sorted({one.session for one in sender.sent})[:ASKED]
    }
    owner.kill()
    lost = [session for session in value if heir.get(f"/tables/sessions/{session}").status == 503]
    assert lost, "the owner's sessions are nobody's until the group takes it for dead"
    for session in lost:
        told = heir.get(f"/tables/sessions/{session}?stale_ok=1")
        assert (told.status, told.json()) == (200, value[session])
        if heir.get(f"/tables/sessions/{session}").status == 503:  # asked afterwards: it was nobody's then
            assert 0 <= int(told.staleness_ms or "-1") < 10_000
    until(lambda: len(opened(heir)) == rig.partitions, 30, what="the heir has all partitions", alive=[heir])
    taken = replays(heir)[already:]
    assert len(taken) == rig.partitions // 2, tails([heir])
    assert sum(taken) < 100, f"{taken} records replayed: all that there are, not the tail\n{tails([heir])}"
    sender.send(1000)
    rig.assert_exact()


def opened(worker: Worker) -> list[int]:
    return list(worker.get("/tables").json()["partitions"]["open"])


def current(worker: Worker, since: float) -> bool:
    """The worker has its half, and a copy of the other's that was current at some moment since then (monotonic)."""
    elapsed = time.monotonic() - since
    partitions = worker.get("/tables").json()["partitions"]
    copies = partitions["copies"]
    return len(partitions["open"]) == len(copies) == 2 and all(
        age is not None and age < elapsed for age in copies.values()
    )


def replays(worker: Worker) -> list[int]:
    return [int(count) for count in REPLAYED.findall(worker.log(None))]
