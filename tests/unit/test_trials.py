"""What limits are judged by: what workers tell, and nothing that somebody else has written to model-status."""

from __future__ import annotations

from typing import Any

import pytest

from agents.trials import told_of_canary
from core.events import Canary, Deployment, ModelStatus

DEPLOYED = Deployment(model="churn", revision=4, active="1", canary=Canary(version="2", share=0.1), since=0)


def worker(revision: int = 4, **canary: Any) -> ModelStatus:
    told = {"version": "2", "role": "canary", "since": 1, "share": 0.1, "figures": {"answers": 5}} | canary
    return ModelStatus(worker="w", models={"churn": {"revision": revision, "canary": told}}, ts=0)


def test_workers_at_the_revision_add_up() -> None:
    told = {"a": worker(), "b": worker(), "behind": worker(revision=3), "other": worker(version="3")}
    assert told_of_canary(DEPLOYED, told).answers == 10
    assert told_of_canary(DEPLOYED, {}).answers == 0


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"revision": 4, "canary": {"version": "2"}},
        {"revision": 4, "canary": "2"},
        {"revision": "four"},
        {"revision": 4, "canary": {"version": "2", "role": "canary", "since": 1, "share": 0.1, "figures": 7}},
    ],
)
def test_what_is_no_status_of_a_worker_counts_for_nothing(model: dict[str, Any]) -> None:
    foreign = ModelStatus(worker="x", models={"churn": model}, ts=0)
    assert told_of_canary(DEPLOYED, {"x": foreign, "a": worker()}).answers == 5
