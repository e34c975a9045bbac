"""Two workers that share the partitions while one after the other is killed or stopped, and replaced."""

from __future__ import annotations

import random

import pytest

from tests.rig import Rig


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(2, id="1 kill and 1 SIGTERM"),
        pytest.param(10, id="5 kills and 5 SIGTERMs", marks=[pytest.mark.long, pytest.mark.timeout(600)]),
    ],
)
def test_workers_that_come_and_go_lose_nothing_and_repeat_nothing(rig: Rig, ends: int) -> None:
    moments = random.Random(ends)
    survivor = rig.worker("w0", session_timeout=3).start()
    rig.deploy()
    with rig.sender():
        for number in range(ends):
            newcomer = rig.worker(f"w{number + 1}", session_timeout=3).start().wait_ready()
            rig.wait_progress(moments.randrange(200, 4000))
            victim, survivor = moments.sample([survivor, newcomer], 2)
            if number % 2:
                assert victim.terminate() == 0, victim.log()
            else:
                victim.kill()
            rig.wait_progress(moments.randrange(200, 4000))
    rig.assert_exact()
