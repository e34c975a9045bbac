"""A worker that was stopped for longer than the group waits, and goes on as if nothing had been."""

from __future__ import annotations

import pytest

from tests.rig import Rig
from tests.worker import until


@pytest.mark.parametrize("load", ["goes on", "has ended"])
@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(1, id="once"),
        pytest.param(4, id="4 times", marks=[pytest.mark.long, pytest.mark.timeout(600)]),
    ],
)
def test_a_zombie_writes_nothing_that_its_heir_has_written(rig: Rig, load: str, rounds: int) -> None:
    sender = rig.sender()
    heir = rig.worker("w0", session_timeout=3).start()
    rig.deploy()
    for number in range(rounds):
        zombie, heir = heir, rig.worker(f"w{number + 1}", session_timeout=3)
        sender.start()
        rig.wait_progress(1000)

        zombie.pause()
        heir.start()
        rig.wait_progress(1000)
        if load == "has ended":
            sender.stop()
            rig.wait_predictions()
        zombie.resume()
        until(zombie.awake, 30, what="the zombie is awake")

        if load == "has ended":
            sender.start()
        rig.wait_progress(2000)
        sender.stop()
        rig.wait_predictions()
        if zombie.running:
            assert zombie.terminate() == 0, "it found its way back into the group, so it ends like any other"
        else:
            assert zombie.exit_code != 0, "a zombie that ends must say that it was fenced"
    rig.assert_exact()
