"""What a search over HTTP says of who has ordered its passages."""

from __future__ import annotations

from pathlib import Path

from cli.knowledge import counts, passages
from core.events import Deployment
from tests.unit.knowledge.ranker import ranker
from tests.unit.knowledge.shelving import Topic
from tests.unit.web.worker import Start, Worker

FOUND = "/knowledge/search?q=the%20cat"


async def known(worker: Worker) -> Worker:
    """With two documents that have a cat."""
    knowledge, topic = worker.app.engine.knowledge, Topic()
    await knowledge.open(None)
    topic.add("shy", "the cat and a dog")
    topic.add("loud", "cat cat cat cat")
    await knowledge.apply(topic.records)
    knowledge.caught_up.set()
    return worker


async def test_a_search_tells_by_whom_it_is_ordered_or_why_not(start: Start, tmp_path: Path) -> None:
    ranker(tmp_path / "store")
    worker = await known(await start(reranker_model="ranks", model_store=str(tmp_path / "store")))
    status, told = await worker.get(FOUND)
    assert (status, told["reranked"], told["unranked"]) == (200, False, "no reranker ranks is live on this worker")
    assert "Not reranked: no reranker ranks is live on this worker." in passages(told)
    assert "rerank" not in told["found"][0]
    _, whole = await worker.get("/knowledge")
    assert counts(whole)[-1] == "Not reranked: no reranker ranks is live on this worker."
    await worker.app.engine.models.converge(Deployment(model="ranks", revision=1, active="1", since=0))
    _, told = await worker.get(FOUND)
    assert (told["reranked"], told["unranked"]) == (True, None)
    assert [(one["document"], one["rerank"]) for one in told["found"]] == [("loud", 4), ("shy", 2)]
    _, told = await worker.get("/knowledge")
    assert told["reranker"] == {
        "model": "ranks@1", "error": None, "reranked": 1, "late": 0, "failed": 0, "away": 1,
    }  # fmt: skip
    await worker.app.engine.knowledge.close()


async def test_where_no_reranker_is_set_nothing_is_said_of_one(start: Start) -> None:
    worker = await known(await start())
    _, told = await worker.get(FOUND)
    assert (told["reranked"], told["unranked"]) == (False, None)
    assert not [line for line in passages(told) if "eranked" in line]
    _, told = await worker.get("/knowledge")
    assert told["reranker"] is None
    await worker.app.engine.knowledge.close()
