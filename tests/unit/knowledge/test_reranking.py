"""The slot of a reranker in a search: who orders what is found, and what happens where he can't."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.events import Document
from engine.testing import in_memory
from engine.testing.memory import InMemory
from models.embedder.convert import convert
from models.knowledge.canonical import canonical
from models.knowledge.knowledge import Answer
from models.knowledge.query import LONGEST, Query
from models.knowledge.recall import Recalled, alike, entry_of, exact, remembered, similar
from models.knowledge.reranking import CANDIDATES, Reranking
from models.knowledge.reuse import Grounds, answer_key
from tables.retrievals import retrievals
from tests.unit import graphs
from tests.unit.knowledge.bert import sentence_folder
from tests.unit.knowledge.ranker import FAILS, NOT_FINITE, ranker
from tests.unit.knowledge.shelving import Topic
from tests.unit.knowledge.test_retrievals import ASKS, TELLS, Ask, tell

DOCUMENTS = {
    "shy": "the cat and a dog",
    "loud": "cat cat cat cat cat cat",
    "dogs": "a dog barks at night.",
    "odd": "day",
}
"""By words alone "cat" finds shy and loud; the more cats, the better the reranker likes it."""


class Slot:
    """A worker's knowledge, with or without what orders it."""

    def __init__(self, trial: InMemory) -> None:
        self.trial = trial
        self.knowledge = trial.engine.knowledge
        self.topic = Topic()

    async def know(self, documents: dict[str, str]) -> None:
        for name, text in documents.items():
            document = Document(name, text)
            self.topic.announce(document)
            self.topic.make(document, [text])
        await self.knowledge.apply(self.topic.records)

    async def search(self, text: str = "cat", count: int = 8) -> Answer:
        return await self.knowledge.search(Query(text=text, count=count))


@asynccontextmanager
async def slot(
    folder: Path, model: str | None = "ranks", documents: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[Slot]:
    store = folder / "store"
    ranker(store)
    ranker(store, version="2", weight=-1.0)
    async with in_memory([tell], [retrievals], model_store=str(store), reranker_model=model, **options) as trial:
        await trial.engine.knowledge.open(None)
        trial.engine.knowledge.caught_up.set()
        try:
            one = Slot(trial)
            await one.know(DOCUMENTS if documents is None else documents)
            yield one
        finally:
            await trial.engine.knowledge.close()


def names(answer: Answer) -> list[str]:
    return [one.document for one in answer.found]


async def test_the_reranker_orders_what_the_fusion_has_found(tmp_path: Path) -> None:
    async with slot(tmp_path) as s:
        fused = await s.search("the cat")
        await s.trial.deploy("ranks", "1")
        answer = await s.search("the cat")
        assert names(answer) == ["loud", "shy"]
        assert [one.rerank for one in answer.found] == [6, 2]
        assert answer.reranker
        assert answer.unranked is None
        assert {one.document: one.score for one in answer.found} == {one.document: one.score for one in fused.found}
        await s.trial.deploy("ranks", "2")
        other = await s.search("the cat")
        assert names(other) == ["shy", "loud"]
        assert other.reranker != answer.reranker
        assert (await s.knowledge.status())["reranker"] == {
            "model": "ranks@2", "error": None, "reranked": 2, "late": 0, "failed": 0, "away": 1,
        }  # fmt: skip


async def test_more_passages_are_judged_than_are_wanted_and_no_more_than_can_be(tmp_path: Path) -> None:
    many = {f"d{n:02}": "cat" + " dog" * n for n in range(CANDIDATES + 4)} | {"best": "dog " * 6 + "cat cat cat"}
    async with slot(tmp_path, documents=many) as s:
        fused = names(await s.search(count=CANDIDATES + 5))
        await s.trial.deploy("ranks", "1")
        found = (await s.search(count=CANDIDATES + 5)).found
        assert len(found) == CANDIDATES + 5
        assert [one.document for one in found[CANDIDATES:]] == fused[CANDIDATES:]
        assert [one.rerank is None for one in found] == [False] * CANDIDATES + [True] * 5
        assert fused.index("best") < CANDIDATES
        assert names(await s.search(count=1)) == ["best"]
        assert len((await s.search(count=3)).found) == 3


async def test_without_one_that_is_live_the_fused_order_stands_and_the_answer_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with slot(tmp_path) as s:
        answers = [await s.search() for _ in range(3)]
        assert {one.unranked for one in answers} == {"no reranker ranks is live on this worker"}
        answer = answers[-1]
        assert [one.rerank for one in answer.found] == [None, None]
        assert (answer.reranker, s.knowledge.reranking.counts["away"]) == ("", 3)
        assert caplog.text.count("Passages stay in the order of the fusion: no reranker ranks is live") == 1
        graphs.folder(tmp_path / "store", graphs.linear(), name="ranks", version="4")
        await s.trial.deploy("ranks", "4")
        assert (await s.search()).unranked == "no reranker ranks is live on this worker", "a classifier is none"


async def test_where_none_is_set_nobody_asks_one(tmp_path: Path) -> None:
    async with slot(tmp_path, model=None) as s:
        await s.trial.deploy("ranks", "1")
        answer = await s.search()
        assert (answer.reranker, answer.unranked) == ("", None)
        assert [one.rerank for one in answer.found] == [None, None]
        assert (await s.knowledge.status())["reranker"] is None
        assert not s.knowledge.reranking.counts


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"cat {FAILS}", "ranks@1 failed"),
        (f"cat {NOT_FINITE}", "ranks@1 gave a score that is not finite"),
        ("cat " + "the " * 30, "a question of 31 tokens leaves no room"),
    ],
)
async def test_one_that_fails_costs_its_order_and_nothing_else(tmp_path: Path, text: str, why: str) -> None:
    async with slot(tmp_path) as s:
        before = names(await s.search(text))
        await s.trial.deploy("ranks", "1")
        answer = await s.search(text)
        assert names(answer) == before
        assert answer.unranked is not None
        assert why in answer.unranked
        assert s.knowledge.reranking.counts["failed"] == 1
        assert (await s.search()).unranked is None, "the next question is reranked again"
        assert s.knowledge.reranking.error is None


async def test_of_a_very_long_message_as_much_is_read_as_of_any_question(tmp_path: Path) -> None:
    async with slot(tmp_path) as s:
        await s.trial.deploy("ranks", "1")
        answer = await s.search("the cat" + " " * LONGEST + "the " * 100_000)
        assert (names(answer), answer.unranked) == (["loud", "shy"], None)


async def test_when_time_is_up_the_fused_order_stands_and_nobody_waits_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with slot(tmp_path) as s:
        await s.trial.deploy("ranks", "1")
        s.knowledge.reranking = Reranking(s.trial.models, "ranks", patience_s=0)
        answer = await s.search()
        assert answer.unranked == "ranks@1 took longer than 0 s"
        assert len(answer.found) == 2
        with s.trial.models.reranking("ranks") as reranker:
            assert reranker is not None
            monkeypatch.setattr(reranker, "scores", None)  # whoever called it would be told so
            assert (await s.search()).unranked == "ranks@1 took longer than 0 s"
        assert s.knowledge.reranking.counts == {"late": 2}


class Hangs:
    """Holds a thread until it is let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def compute(self, inputs: Any) -> Any:
        self.go_on.wait(30)
        return dict(inputs)


async def test_a_reranker_that_hangs_holds_up_neither_scores_nor_the_vectors_of_questions(tmp_path: Path) -> None:
    convert(sentence_folder(tmp_path / "source"), tmp_path / "store", name="small", version="1")
    graphs.folder(tmp_path / "store", graphs.linear())
    async with slot(tmp_path) as s:
        for name in ("ranks", "small", "churn"):
            await s.trial.deploy(name, "1")
        s.knowledge.reranking = Reranking(s.trial.models, "ranks", patience_s=0.05)
        hangs = Hangs()
        with s.trial.models.reranking("ranks") as reranker:
            assert reranker is not None
            held = asyncio.ensure_future(reranker._thread.run(hangs, {"x": np.zeros(1)}))
        try:
            answer = await s.search()
            assert answer.unranked == "ranks@1 took longer than 0.05 s"
            assert answer.embedder, "its vector was made"
            with s.trial.models.using("churn") as version:
                assert len(await version.predict({"X": np.zeros((1, 1), np.float32)})) == 1
            assert not held.done()
        finally:
            hangs.go_on.set()
            await held


async def test_what_a_session_has_found_is_searched_again_once_another_orders_it(tmp_path: Path) -> None:
    async with slot(tmp_path) as s:

        async def ask() -> tuple[str, tuple[str, ...]]:
            await s.trial.send(ASKS, [Ask("ann", 0, "the cat")])
            await s.trial.settle()
            told = s.trial.outputs(TELLS)[-1].value
            return told.source, told.documents

        assert (await ask())[0] == "search"
        assert (await ask())[0] == "exact", "the fused order is reused while nobody is there to change it"
        await s.trial.deploy("ranks", "1")
        assert await ask() == ("search", ("loud", "shy"))
        assert await ask() == ("exact", ("loud", "shy"))
        await s.trial.deploy("ranks", "2")
        assert await ask() == ("search", ("shy", "loud"))


async def test_the_scores_of_an_earlier_question_are_told_again_with_its_passages(tmp_path: Path) -> None:
    async with slot(tmp_path) as s:
        await s.trial.deploy("ranks", "1")
        query = Query(text="cat", count=8)
        answer = await s.search()
        kept = entry_of(query, None, "", answer.found, answer.version, 0, answer.reranker)
        again = await s.knowledge.again(query, retrievals.decode(retrievals.encode(Recalled([kept]))).entries[0])
        assert again is not None
        assert again.found == answer.found
        assert again.reranker == answer.reranker


def test_an_entry_of_another_reranker_is_another_question() -> None:
    query, vector = Query(text="the cat"), np.full(4, 0.5, np.float32)
    recalled = remembered(Recalled(), entry_of(query, vector, "e", [], (), 0, "one"))
    assert recalled.entries[0].asked == canonical("the cat")
    for reranker, there in (("one", True), ("other", False), ("", False)):
        assert (exact(recalled, query, "e", 0, reranker) is not None) is there
        assert (alike(recalled, Query(text="a cat"), "e", 0, reranker) is not None) is there
        assert (similar(recalled, query, vector, "e", 0, reranker) is not None) is there


def test_an_answer_is_given_again_only_by_passages_of_the_same_order() -> None:
    keys = {answer_key("what is a cat", Grounds(None, b"", (1,), "m", "e", one)) for one in ("", "one", "other")}
    assert len(keys) == 3
