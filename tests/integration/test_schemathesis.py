"""/openapi.json is true: schemathesis, which tries to prove the contrary, finds nothing on a live worker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka import Broker
from tests.rig import Rig, rig_on
from tests.worker import Worker

ST = Path(sys.executable).with_name("st")
STREAMS = "(/watch|/replies)$"
"""Routes whose answers have no end."""


@pytest.fixture
def target(embedded: Broker, tmp_path: Path) -> Iterator[Worker]:
    """A worker that is ready, with values in its tables."""
    with rig_on(embedded, tmp_path) as rig:
        yield ready(rig)


def ready(rig: Rig) -> Worker:
    worker = rig.worker("a", web_token="all").start()
    rig.deploy()
    rig.sender().send(500)
    rig.wait_predictions()
    return worker


def attack(worker: Worker, *arguments: str, within_s: float) -> None:
    """Fails with what schemathesis has to say."""
    command = [
        str(ST),
        "run",
        f"{worker.url}/openapi.json",
        "--checks=all",
        f"--exclude-path-regex={STREAMS}",
        "--header=Authorization: Bearer all",
        "--seed=1",
        "--request-timeout=10",
        "--generation-database=none",
        "--no-color",
        *arguments,
    ]
    done = subprocess.run(command, cwd=worker.folder, capture_output=True, text=True, timeout=within_s, check=False)
    assert done.returncode == 0, f"{done.stdout[-12_000:]}\n{done.stderr[-2000:]}"
    assert worker.running


def test_schemathesis_finds_nothing(target: Worker) -> None:
    attack(target, "--max-examples=3", "--phases=examples,coverage", within_s=60)


@pytest.mark.long
def test_schemathesis_finds_nothing_in_many_tries(target: Worker) -> None:
    attack(target, "--max-examples=200", within_s=400)


@pytest.mark.long
def test_schemathesis_finds_nothing_where_there_are_values(target: Worker) -> None:
    (target.folder / "schemathesis.toml").write_text(
        """
        [[operations]]
        include-path = "/tables/{table}/{key}"
        parameters = { "path.table" = "sessions", "path.key" = "s1" }
        """
    )
    attack(target, "--max-examples=100", "--include-path=/tables/{table}/{key}", within_s=200)
