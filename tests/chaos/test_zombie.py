"""A worker that was stopped for longer than the group waits, and goes on as if nothing had been."""

from __future__ import annotations

import pytest

from tests.rig import Rig
from tests.stream import Sender
from tests.worker import Worker, until


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(1, id="once"),
        pytest.param(4, id="4 times", marks=[pytest.mark.long, pytest.mark.timeout(600)]),
    ],
)
def test_a_zombie_writes_nothing_that_its_heir_has_written(rig: Rig, rounds: int) -> None:
    workers = [rig.worker(f"w{number}", session_timeout=3) for number in range(2 * rounds + 1)]
    sender = rig.sender()
    workers[0].start()
    rig.deploy()
    for number in range(0, 2 * rounds, 2):
        wake_under_load(rig, sender, workers[number], workers[number + 1])
        wake_after_the_load(rig, sender, workers[number + 1], workers[number + 2])
    rig.assert_exact()


def wake_under_load(rig: Rig, sender: Sender, zombie: Worker, heir: Worker) -> None:
    """The zombie wakes while its heir is at work."""
    with sender:
        bury(rig, zombie, heir)
        wake(zombie)
        rig.wait_progress(2000)
    end(rig, zombie)


def wake_after_the_load(rig: Rig, sender: Sender, zombie: Worker, heir: Worker) -> None:
    """The zombie wakes when its heir has done everything, and there is nothing that would tell it so."""
    with sender:
        bury(rig, zombie, heir)
    rig.wait_predictions()
    wake(zombie)
    with sender:
        rig.wait_progress(2000)
    end(rig, zombie)


def bury(rig: Rig, zombie: Worker, heir: Worker) -> None:
    """Stops one in the middle of its work, and lets the other take over."""
    rig.wait_progress(1000)
    zombie.pause()
    heir.start()
    rig.wait_progress(1000)


def wake(zombie: Worker) -> None:
    zombie.resume()
    until(zombie.awake, 30, what=f"the zombie {zombie.name} is awake")


def end(rig: Rig, zombie: Worker) -> None:
    """It has found its way back into the group and ends like any other, or it has ended and said that it was fenced."""
    rig.wait_predictions()
    if zombie.running:
        assert zombie.terminate() == 0, zombie.log()
    else:
        assert zombie.exit_code != 0, zombie.log()
