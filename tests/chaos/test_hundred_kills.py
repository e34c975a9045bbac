"""A hundred deaths in one run: one to three workers, kill -9 and SIGTERM at random, folders kept and removed."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.rig import Rig
from tests.worker import Worker

KILLS = 100


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_hundred_deaths_lose_nothing_and_repeat_nothing(rig: Rig) -> None:
    chance = random.Random(KILLS)
    workers = [rig.worker(name, session_timeout=3) for name in "abc"]
    workers[0].start()
    rig.deploy()
    with rig.sender(rate=500, sessions=400):
        for _ in range(KILLS):
            # One of them has always been there for a while, so that there is work to die in.
            rig.wait_progress(chance.randrange(50, 1500), within_s=90)
            running = rig.running()
            absent = [worker for worker in workers if worker not in running]
            if len(running) > 1 or not absent:
                end(chance.choice(running), chance)
            else:
                arriving, leaving = chance.choice(absent), running[0]
                arriving.start()
                if chance.random() < 0.5:
                    arriving.wait_ready()
                end(leaving, chance)
            for worker in chance.sample(absent, chance.randrange(len(absent) + 1)):
                if worker.exit_code is not None or worker.process is None:
                    worker.start()
        rig.wait_progress(1000, within_s=90)
    rig.assert_exact()


def end(worker: Worker, chance: random.Random) -> None:
    """It dies, and its folder with it at times."""
    if chance.random() < 0.5:
        worker.kill()
    else:
        # One that has hardly begun knows no order in ending yet.
        assert worker.terminate() in (0, -15), worker.log()
    if chance.random() < 0.3:
        shutil.rmtree(Path(worker.environment["HOMUNCULUS_DATA_DIR"]), ignore_errors=True)
