"""scripts/demo purchases as people run it: what it promises, and that nothing is left behind, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from engine.embedded import PORT
from examples.purchases.data import PURCHASES, observations
from examples.purchases.versions import trained
from tests.kafka import Broker
from tests.worker import ROOT, answers, free_port, until

FEW: Sequence[str] = ("--events", "5000")
START_S = 60.0


class Run:
    """A demo in a process of its own, with its output in a file."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.port = free_port()
        self.path = folder / "demo.log"
        self._command = [*arguments, "--web-port", str(self.port)]
        self._processes: list[psutil.Process] = []

    def start(self) -> Self:
        with self.path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "examples.purchases.demo", *self._command],
                cwd=ROOT,
                env=os.environ | {"PYTHONUNBUFFERED": "1", "TMPDIR": str(self.path.parent)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    @property
    def output(self) -> str:
        return self.path.read_text()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait_for(self, text: str, within_s: float = START_S) -> None:
        """Returns when it has written that, and remembers what it has started by then."""
        until(lambda: text in self.output or not self.running, within_s, what=f"{text!r} is written")
        assert text in self.output, self.output
        self._remember()

    def wait_started(self) -> None:
        """Returns when all that it starts is there: its worker, and the broker that the worker brought along."""
        until(lambda: answers(PORT) or not self.running, START_S, what="its broker is up")
        assert self.running, self.output
        self._remember()

    def _remember(self) -> None:
        self._processes = psutil.Process(self._process.pid).children(recursive=True)
        assert self._processes, f"nothing runs, or somebody else has the port:\n{self.output}"

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ended(self, within_s: float = START_S) -> int:
        """Its exit status, once it has ended."""
        until(lambda: not self.running, within_s, what=f"the demo has ended\n{self.output}")
        return int(self._process.returncode)

    def left(self) -> list[psutil.Process]:
        """What it started and what still lives."""
        return [process for process in self._processes if _lives(process)]

    def close(self) -> None:
        """Ends it, and all that it has started, whatever the state."""
        for process in [*self.left(), *([self._process] if self.running else [])]:
            process.kill()
        self._process.wait(10)


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # since a moment ago
        return False


@pytest.fixture(scope="session", autouse=True)
def _models() -> None:
    """Trained once for all runs: each finds them in the cache."""
    trained(observations())


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    """A demo with the arguments of the test's parameter, on a broker of its own."""
    if answers(PORT):
        pytest.skip(f"port {PORT}, the embedded broker's, is taken: the demo would share that broker")
    run = Run(tmp_path, *request.param).start()
    yield run
    run.close()


few = pytest.mark.parametrize("run", [FEW], indirect=True, ids=["few"])


@pytest.mark.parametrize("run", [[*FEW, "--keep"]], indirect=True, ids=["few"])
def test_with_keep_it_goes_on_shares_its_broker_and_leaves_nothing_behind_when_it_is_interrupted(
    run: Run, tmp_path: Path
) -> None:
    until(lambda: answers(PORT), START_S, what="its broker is up")
    folder = tmp_path / "other"
    folder.mkdir()
    other = Run(folder, "--events", "1000").start()
    try:
        run.wait_for("It goes on until Ctrl-C", within_s=90)
        assert "\nNO " not in run.output, run.output
        assert "yes  every label found its answer" in run.output
        assert "A sample has too few answers for a drift to be told" in run.output
        assert "AUC after" not in run.output
        other.wait_for("shared broker at")
        assert other.ended(90) == 0, other.output
    finally:
        other.close()
    customer = run.output.partition("/tables/sessions/")[2].split()[0]
    row = get(f"http://127.0.0.1:{run.port}/tables/sessions/{customer}")
    assert row["count"] >= 1
    assert get(f"http://127.0.0.1:{run.port}/models")["models"]["repeat-purchase"]["version"] == "2"

    run.send(signal.SIGINT)
    assert run.ended() == 0, run.output
    assert "yes  the worker stopped cleanly" in run.output
    assert "yes  its broker has gone with it" in run.output
    assert run.left() == []
    assert not answers(PORT)


@pytest.mark.long
def test_on_apache_kafka_no_purchase_is_answered_twice(kafka: Broker, tmp_path: Path) -> None:
    run = Run(tmp_path, *FEW, "--broker", kafka.url).start()
    try:
        assert run.ended(90) == 0, run.output
        assert "yes  no purchase was answered twice" in run.output
        assert "none missing, 0 repeated" in run.output
    finally:
        run.close()


@few
def test_ctrl_c_on_the_way_leaves_nothing_behind(run: Run) -> None:
    run.wait_started()
    run.send(signal.SIGINT)
    assert run.ended() == 130, run.output
    assert run.left() == []


@few
def test_kill_nine_leaves_nothing_behind_either(run: Run) -> None:
    run.wait_started()
    run.send(signal.SIGKILL)
    run.ended()
    until(lambda: not run.left(), 30, what="the worker and its broker are gone")


@few
def test_a_worker_that_dies_ends_the_demo_with_its_last_words(run: Run) -> None:
    run.wait_started()
    (worker,) = [process for process in run.left() if process.name() != "sh" and "faust" in process.cmdline()]
    worker.kill()
    assert run.ended() == 1, run.output
    assert "demo: the worker ended" in run.output
    assert "the end of its log:" in run.output
    until(lambda: not run.left(), 10, what="its broker is gone")


STORY: Sequence[str] = (
    "every purchase was answered",
    "every label found its answer",
    "every version with 5,000 answers that can be judged reaches an AUC of 0.73",
    "the drift of version 2 was seen",
    "its fallback answered within 2 s of the alarm",
    "a retrained version was promoted by its limits, and nobody had a hand in it",
    "what it answered is what it answers outside of the worker, on features recomputed",
    "its AUC is better than that of version 2 on the very same purchases",
)


def assert_story(run: Run) -> None:
    assert "\nNO " not in run.output, run.output
    for claim in STORY:
        assert f"yes  {claim}" in run.output, run.output
    assert f"{PURCHASES:,}, none missing, 0 repeated, 0 dead letters" in run.output
    assert run.left() == []


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("run", [[]], indirect=True, ids=["all"])
def test_a_drift_is_seen_answered_retrained_and_over_and_every_purchase_is_answered(run: Run) -> None:
    run.wait_for("DRIFT", within_s=200)
    assert any("trainer" in " ".join(process.cmdline()) for process in run.left()), "a process of its own"
    assert run.ended(200) == 0, run.output
    assert_story(run)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_same_on_apache_kafka(kafka: Broker, tmp_path: Path) -> None:
    run = Run(tmp_path, "--broker", kafka.url).start()
    try:
        run.wait_for("DRIFT", within_s=200)
        assert run.ended(200) == 0, run.output
        assert "yes  no purchase was answered twice" in run.output
        assert_story(run)
    finally:
        run.close()


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("run", [[]], indirect=True, ids=["all"])
def test_kill_nine_while_a_candidate_is_trained_leaves_no_trainer_behind(run: Run) -> None:
    run.wait_for("training is asked for", within_s=200)
    assert any("trainer" in " ".join(process.cmdline()) for process in run.left())
    run.send(signal.SIGKILL)
    run.ended()
    until(lambda: not run.left(), 30, what="trainer, worker and broker are gone")


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as response:
        return json.load(response)
