"""`faust -A app worker` with nothing set, on a fresh machine."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from engine.embedded import PORT
from tests.worker import Worker, answers, free_port, until

WEB_PORT = 6066


@pytest.fixture
def first(tmp_path: Path) -> Iterator[Worker]:
    """A worker in an empty folder, without any variable of ours."""
    taken = [port for port in (PORT, WEB_PORT) if answers(port)]
    if taken:
        pytest.skip(f"the default ports must be free, but {taken} are taken")
    folder = tmp_path / "first"
    folder.mkdir()
    worker = Worker("first", folder, {}).start()
    yield worker
    worker.close()


@pytest.fixture
def second(tmp_path: Path) -> Iterator[Worker]:
    """Another one beside it, not started yet: it needs a web port of its own, and nothing else."""
    folder = tmp_path / "second"
    folder.mkdir()
    worker = Worker("second", folder, {"HOMUNCULUS_WEB_PORT": str(free_port())})
    yield worker
    worker.close()


def up(worker: Worker) -> bool:
    """Whether nothing but a model is missing: its partitions are open."""
    answer = worker.get("/health/ready")
    if answer.status != 503:
        return False
    reasons = answer.json()["reasons"]
    return len(reasons) == 1 and "no model is live" in reasons[0]


def brokers(worker: Worker) -> list[psutil.Process]:
    """The embedded broker's processes that this worker brought along."""
    return [child for child in psutil.Process(worker.pid).children(recursive=True) if "tansu" in child.name()]


def gone(processes: list[psutil.Process]) -> bool:
    return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


def test_with_nothing_set_it_brings_its_own_broker_and_sigterm_leaves_none_behind(first: Worker) -> None:
    until(partial(up, first), 40, what="the worker is up", alive=[first])
    left = brokers(first)
    assert len(left) == 1
    assert "NOTHING IS DURABLE" in first.log(None)
    assert first.get("/health/live").status == 200
    assert first.terminate(within_s=10) == 0, first.log()
    until(partial(gone, left), 5, what="the broker is gone")


def test_a_second_worker_shares_the_first_ones_broker_and_kill_nine_leaves_none_behind(
    first: Worker, second: Worker
) -> None:
    until(lambda: answers(PORT), 40, what="the first one's broker is up", alive=[first])
    second.start()
    until(partial(up, second), 40, what="the second is up", alive=[first, second])
    left = brokers(first)
    assert left
    assert brokers(second) == []
    until(partial(up, first), 40, what="the first is up", alive=[first, second])
    assert second.terminate() == 0, second.log()
    assert up(first)
    first.kill()
    until(partial(gone, left), 5, what="the broker is gone")
    assert not answers(PORT)
