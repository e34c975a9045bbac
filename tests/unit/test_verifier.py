"""The verifier's process: there when it is needed, in nobody's way, and never the end of anything but itself."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from core.errors import GoldenMismatchError, ModelError, TamperedError, UnsafeModelError
from models.folder import ModelFolder
from models.verifier import NICE, Verifier
from tests.hostile import endless
from tests.unit.graphs import folder, linear
from tests.worker import ROOT

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def verifier() -> AsyncIterator[Verifier]:
    """One for all that leave it as it was, since a process takes its time to start."""
    made = Verifier("cpu")
    yield made
    await made.close()


def version(root: Path, number: int) -> ModelFolder:
    path = folder(root, linear(w=0.0, b=number / 100), version=str(number))
    return ModelFolder.open(path, "churn", str(number))


def process_of(verifier: Verifier) -> psutil.Process:
    assert verifier.pid is not None
    return psutil.Process(verifier.pid)


async def come_true(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


async def test_one_process_tries_all_and_lets_others_pass_once_somebody_is_answered(tmp_path: Path) -> None:
    verifier = Verifier("cpu")
    assert verifier.pid is None, "nothing has been tried yet"
    await verifier.check(version(tmp_path, 1), hurry=True)
    process = process_of(verifier)
    assert process.nice() == psutil.Process().nice()
    await verifier.check(version(tmp_path, 2))
    assert process_of(verifier) == process
    assert process.nice() == NICE
    path = folder(tmp_path, linear(), version="3", golden=[{"inputs": {"value": 0}, "expected": {"leave": 1}}])
    with pytest.raises(GoldenMismatchError, match=r"^churn@3: golden\[0\]"):
        await verifier.check(ModelFolder.open(path, "churn", "3"))
    assert process_of(verifier) == process
    await verifier.close()


async def test_what_has_passed_is_not_tried_again_and_the_process_ends_without_work(tmp_path: Path) -> None:
    verifier = Verifier("cpu", idle_s=0.01)
    await verifier.check(version(tmp_path, 1))
    process = process_of(verifier)
    await come_true(lambda: verifier.pid is None and not process.is_running())
    await verifier.check(version(tmp_path, 1))
    assert verifier.pid is None
    await verifier.close()


async def test_it_holds_nothing_of_the_workers(verifier: Verifier, tmp_path: Path) -> None:
    lock = tmp_path / "LOCK"
    with lock.open("w") as held:
        os.set_inheritable(held.fileno(), True)
        await verifier.check(version(tmp_path, 1))
        assert str(lock) in [file.path for file in psutil.Process().open_files()]
        assert process_of(verifier).open_files() == []
    assert process_of(verifier).net_connections() == []


async def test_ctrl_c_and_a_supervisors_sigterm_are_the_workers(verifier: Verifier, tmp_path: Path) -> None:
    await verifier.check(version(tmp_path, 2))
    process = process_of(verifier)
    assert os.getpgid(process.pid) != os.getpgid(0)
    process.terminate()
    await verifier.check(version(tmp_path, 3))
    assert process_of(verifier) == process


async def test_a_folder_that_changes_while_it_is_tried_is_refused(verifier: Verifier, tmp_path: Path) -> None:
    opened = version(tmp_path, 4)
    folder(tmp_path, linear(), version="4", made_by="somebody else")
    with pytest.raises(TamperedError, match=r"churn@4: manifest\.json has changed"):
        await verifier.check(opened)


async def test_a_version_is_not_blamed_for_a_process_that_has_died_before_it(
    verifier: Verifier, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await verifier.check(version(tmp_path, 5))
    process_of(verifier).kill()
    await verifier.check(version(tmp_path, 6))
    assert "churn@6 is tried once more: the process that tried it ended before it was loaded, by SIGKILL" in caplog.text


async def test_two_candidates_wait_for_each_other_and_one_that_hangs_is_ended(tmp_path: Path) -> None:
    verifier = Verifier("cpu", limit_s=1.0)
    hostile = ModelFolder.open(folder(tmp_path, endless(linear()), version="2"), "churn", "2")
    hanging = asyncio.create_task(verifier.check(hostile))
    await come_true(lambda: verifier.pid is not None)
    first = verifier.pid
    verifier._limit_s = 60.0  # of the next
    await verifier.check(version(tmp_path, 1))
    with pytest.raises(UnsafeModelError, match=r"^churn@2: it was given 1 s, and had to be ended"):
        await hanging
    assert verifier.pid != first
    await verifier.close()


async def test_a_worker_that_ends_waits_for_no_candidate(tmp_path: Path) -> None:
    verifier = Verifier("cpu")
    hostile = ModelFolder.open(folder(tmp_path, endless(linear())), "churn", "1")
    trying = asyncio.create_task(verifier.check(hostile))
    await come_true(lambda: verifier.pid is not None)
    process = process_of(verifier)
    await verifier.close()
    with pytest.raises(ModelError, match="churn@1 isn't tried any more: this worker ends"):
        await trying
    assert not process.is_running()
    with pytest.raises(ModelError, match="churn@2 isn't tried any more: this worker ends"):
        await verifier.check(version(tmp_path, 2))


async def test_where_no_process_can_be_started_the_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(ModelError, match=r"churn@1 can't be tried, since no process can be started: .*No such file"):
        await Verifier("cpu").check(version(tmp_path, 1))


WORKER = """
import asyncio, sys
from pathlib import Path
from models.folder import ModelFolder
from models.verifier import Verifier

async def work():
    verifier = Verifier("cpu")
    trying = asyncio.create_task(verifier.check(ModelFolder.open(Path(sys.argv[1]), "churn", "1")))
    while verifier.doing != "in its first runs":
        await asyncio.sleep(0.01)
    print(verifier.pid, flush=True)
    await trying

asyncio.run(work())
"""


async def test_a_candidate_that_hangs_ends_with_the_worker_whatever_ends_that(tmp_path: Path) -> None:
    path = folder(tmp_path, endless(linear()))
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, str(path), cwd=str(ROOT), stdout=asyncio.subprocess.PIPE
    )
    assert worker.stdout is not None
    process = psutil.Process(int(await worker.stdout.readline()))
    worker.kill()
    await worker.wait()
    await come_true(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
