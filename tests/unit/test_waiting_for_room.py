"""Events that come while one version makes room for the next, through the scoring agent: they wait, all of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agents.scoring import score
from core.events import Observation
from core.topics import DEAD_LETTERS, OBSERVATIONS, PREDICTIONS
from engine.testing import in_memory
from models.budget import SCRATCH
from tables.sessions import sessions
from tests.unit.graphs import folder, linear


@pytest.mark.parametrize("without_model", ["wait", "dead-letter"])
async def test_events_that_come_while_a_version_makes_room_are_answered_by_the_next_and_none_is_lost(
    without_model: str, tmp_path: Path
) -> None:
    for version in ("1", "2"):
        folder(tmp_path, linear(w=0.0, b=int(version) / 10), version=version)
    sessions.configure(frozenset(), None, 1000)
    async with in_memory([score], [sessions], model_store=str(tmp_path), without_model=without_model) as trial:
        trial.models.device.memory.limit = int(1.5 * SCRATCH)
        await trial.deploy("churn", "1")
        await trial.send(OBSERVATIONS, [Observation(f"a{i}", "ann", 1000 + i, {"value": 0.5}) for i in range(50)])
        with trial.models.using("churn"):
            swap = asyncio.create_task(trial.deploy("churn", "2"))
            while "held" not in trial.models.status()["churn"]:
                await asyncio.sleep(0)
            events = [Observation(f"b{i}", "ann", 2000 + i, {"value": 0.5}) for i in range(50)]
            sending = asyncio.create_task(trial.send(OBSERVATIONS, events))
            for _ in range(20):
                await asyncio.sleep(0)
        await swap
        await sending
        await trial.settle()
        assert trial.outputs(DEAD_LETTERS) == []
        answers = [(one.value.event_id, one.value.version) for one in trial.outputs(PREDICTIONS)]
    assert answers == [(f"a{i}", "1") for i in range(50)] + [(f"b{i}", "2") for i in range(50)]
