"""One test function, in memory and on brokers: the page's own example, and scoring with a real model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from agents.deployments import decide
from agents.scoring import score
from core.errors import TrialError
from core.events import Observation
from core.topics import ALERTS, CONTROL, OBSERVATIONS, PREDICTIONS
from engine.testing import InMemory, Trial, in_memory, on_broker
from tables.deployments import deployments
from tables.sessions import sessions
from tests import tally
from tests.kafka import given_kafka
from tests.worker import ROOT

PAGE: Final = (ROOT / "docs" / "testing.md").read_text("utf-8")
FILES: Final = re.findall(r"^`(\w+\.py)`.*?```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
LONG: Final = pytest.mark.long
KAFKA: Final = bool(os.environ.get("KAFKA_BOOTSTRAP"))
QUICK: Final = ["memory", "kafka"] if KAFKA else ["memory"]
"""The embedded broker takes 6 s to let a worker in."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("where", [QUICK, pytest.param(["embedded"], marks=[LONG])], ids="-".join)
def test_the_example_of_the_page_passes_as_it_stands(where: list[str], tmp_path: Path) -> None:
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    if "kafka" in where:
        environment["TEST_BROKER"] = given_kafka().url
    assert [name for name, _ in FILES] == ["orders.py", "shop.py", "test_orders.py"]
    (tmp_path / ".env").write_text("HOMUNCULUS_MAX_RECORD=nonsense")  # of whoever develops here
    for name, code in FILES:
        (tmp_path / name).write_text(code)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", " or ".join(where), "test_orders.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{len(where)} passed" in ran.stdout


@pytest.fixture(
    params=["memory", pytest.param("kafka", marks=[LONG, pytest.mark.kafka]), pytest.param("embedded", marks=[LONG])]
)
def scoring(request: pytest.FixtureRequest, tmp_path: Path) -> Trial:
    """The application itself, with a model in its store."""
    tally.publish(tmp_path)
    settings: dict[str, Any] = {"model_store": str(tmp_path), "partitions": 2}
    if request.param == "memory":
        return in_memory([score, decide], [sessions, deployments], **settings)
    return on_broker(given_kafka().url if request.param == "kafka" else "embedded", "app", **settings)


@pytest.mark.timeout(300)
async def test_a_version_of_the_store_scores_and_keeps_the_sessions_through_a_crash(scoring: Trial) -> None:
    async with scoring as trial:
        if isinstance(trial, InMemory):
            sessions.configure(trial.models.needed(), None, 100)
        with pytest.raises(TrialError, match=r"tally@9 does not go live: .*9"):
            await trial.deploy("tally", "9")
        await trial.deploy("tally", "1")
        for crash in (False, True):
            if crash:
                await trial.crash()
            first = 10 * crash
            events = [
                Observation(f"e{n}", f"s{n % 3}", 1_764_374_400_000 + n, {"f0": 1.0}) for n in range(first, first + 10)
            ]
            await trial.send(OBSERVATIONS, events)
            await trial.settle()
        answers = trial.outputs(PREDICTIONS)
        assert sorted(one.value.event_id for one in answers) == sorted(f"e{n}" for n in range(20))
        assert {key: row["count"] for key, row in trial.values(sessions).items()} == {"s0": 7, "s1": 7, "s2": 6}
        assert [trial.value(sessions, f"s{n}")["count"] for n in range(3)] == [7, 7, 6]  # type: ignore[index]


@pytest.mark.timeout(300)
async def test_records_have_the_time_that_the_test_says(scoring: Trial) -> None:
    async with scoring as trial:
        await trial.send(CONTROL, [b'{"active": "9"}'], key="tally", at=datetime(2025, 11, 29, tzinfo=UTC))
        await trial.settle()
        assert [one.value.ts for one in trial.outputs(ALERTS)] == [1_764_374_400_000]


async def test_an_application_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text("import a_module_that_nobody_has\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrialError, match=r"(?s)has ended with status .*a_module_that_nobody_has"):
        async with on_broker("embedded", "broken"):
            raise AssertionError("it did not start")
