"""A worker dies in the middle of a swap, in each of its phases: the one that judges requests, and the other one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests import tally
from tests.rig import Rig
from tests.worker import Worker, until

JUDGES: Final = ("judge's downloading", "judge's verifying")
"""Before a version is accepted; its first runs are another process' then."""
PHASES: Final = ("downloading", "verifying", "warming", "flip", "draining")
"""On every worker, once it is."""


class Death(NamedTuple):
    """Where a worker dies, and whether it is the one that judges."""

    phase: str
    of_judge: bool


def deaths() -> Iterator[Death]:
    yield from (Death(phase, True) for phase in JUDGES)
    yield from (Death(phase, of_judge) for phase in PHASES for of_judge in (True, False))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_death_in_any_phase_of_a_swap_loses_nothing_and_the_swap_comes_to_its_end(rig: Rig) -> None:
    chance, hold = random.Random(6), rig.folder / "hold"
    workers = [rig.worker(name, app="tests.held.app", session_timeout=3) for name in "ab"]
    for worker in workers:
        worker.environment["SWAP_HOLD"] = str(hold)
        worker.start()
    rig.deploy("1")
    with rig.sender(rate=500):
        for old, death in enumerate(deaths(), start=1):
            victim = swap_and_kill(rig, workers, death, old, hold)
            said = f"{old + 1} after {death}"
            if chance.random() < 0.5:
                [survivor] = rig.running()
                until(partial(has, survivor, old + 1), 60, what=said, alive=[survivor])
            victim.start().wait_ready()
            for worker in workers:
                until(partial(has, worker, old + 1), 60, what=said, alive=workers)
            rig.wait_progress(200)
    rig.assert_exact()
    accepted = [(record.json["active"], record.json["revision"]) for record in rig.reader("deployments").read_out()]
    assert accepted == [(str(n), n) for n in range(1, len(accepted) + 1)], "each request is judged once"
    assert len(accepted) == 1 + len(list(deaths()))


def swap_and_kill(rig: Rig, workers: list[Worker], death: Death, old: int, hold: Path) -> Worker:
    """From one version to the next; the worker that dies does so in the phase, where it is held until then."""
    tally.publish(rig.store, str(old + 1))
    judge = judging(rig, workers, old)
    victim = judge if death.of_judge else next(worker for worker in workers if worker is not judge)
    drains = death.phase == "draining"
    hold.write_text(f"{death.phase} {old if drains else old + 1}")
    rig.control({"active": str(old + 1)})
    victim.wait_log(f"version {old} drains" if drains else f"held in {death.phase} {old + 1}")
    victim.kill()
    hold.unlink()
    return victim


def judging(rig: Rig, workers: list[Worker], old: int) -> Worker:
    """Who refuses a request that has to be refused."""
    never = 1_000_000 + old
    rig.control({"active": "1", "based_on": never})
    said = f"based on revision {never}"
    until(lambda: any(said in worker.log(None) for worker in workers), 30, what="a refusal", alive=workers)
    return next(worker for worker in workers if said in worker.log(None))


def has(worker: Worker, version: int) -> bool:
    """Whether it answers with that version, and has nothing else to do about it."""
    status = worker.get("/models").json()["models"][tally.NAME]
    return status.get("version") == str(version) and not status.keys() & {"loading", "draining", "error"}
