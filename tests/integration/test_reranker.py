"""A reranker through a real broker: deployed, swapped and taken away while a worker answers questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.command import command
from tests.integration.test_knowledge import put, status, wait
from tests.kafka import Broker
from tests.rig import rig_on
from tests.unit.knowledge.ranker import ranker
from tests.worker import Worker

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def order(worker: Worker) -> tuple[list[str], bool, str | None]:
    """Documents, the best first; whether a reranker says so; why not."""
    answer = worker.get("/knowledge/search?q=the%20cat")
    told: dict[str, Any] = answer.json()
    return [one["document"] for one in told["found"]], told["reranked"], told["unranked"]


def test_whoever_is_deployed_orders_what_is_found(broker: Broker, tmp_path: Path) -> None:
    with rig_on(broker, tmp_path) as rig:
        ranker(rig.store)
        ranker(rig.store, version="2", weight=-1.0)
        ranker(rig.store, version="3", ranking={"golden": [{"question": "the cat", "passage": "a cat", "score": 9}]})
        worker = rig.worker("a", reranker_model="ranks").start().wait_log("is open")
        put(rig, "shy", "the cat and a dog")
        put(rig, "loud", "cat cat cat cat")
        wait([worker], "both are found", lambda one: status(one).get("passages") == 2)
        assert order(worker)[1:] == (False, "no reranker ranks is live on this worker")
        rig.control({"active": "1"}, model="ranks")
        wait([worker], "version 1 orders", lambda one: order(one) == (["loud", "shy"], True, None))
        rig.control({"active": "2"}, model="ranks")
        wait([worker], "version 2 orders", lambda one: order(one) == (["shy", "loud"], True, None))
        rig.control({"active": "3"}, model="ranks")
        rig.wait_records("alerts", 1)
        assert "ranking.golden[0] is 1, 9.0 within 0.001 is expected" in str(rig.reader("alerts").records[0].json)
        assert order(worker) == (["shy", "loud"], True, None)
        rig.control({"action": "unload"}, model="ranks")
        wait(
            [worker], "nobody orders", lambda one: order(one)[1:] == (False, "no reranker ranks is live on this worker")
        )
        said = command("knowledge", "search", "the cat", "--worker", worker.url)
        assert "Not reranked: no reranker ranks is live on this worker." in said.stdout, said.stderr
