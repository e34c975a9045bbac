"""What a session has found before: reused while it is true, and never for somebody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from core.events import Document
from core.topics import Direction, TopicSpec
from engine.agent import Stream, agent
from engine.batch import current_slice
from engine.testing import in_memory
from engine.testing.memory import InMemory
from models.embedder.convert import convert
from models.knowledge.making import Making
from models.knowledge.qdrant import Qdrant
from models.knowledge.query import Found, Query
from models.knowledge.recall import BUDGET, TTL_MS, Entry, Recalled, entry_of, exact, remembered, similar
from models.knowledge.record import Key, encode
from tables.retrievals import Retrievals, retrievals
from tests.unit.knowledge.bert import sentence_folder
from tests.unit.knowledge.shelving import Topic, vector

MINUTE = 60_000


class Ask(msgspec.Struct):
    """A question of a session."""

    session: str
    ts: int
    text: str
    tenant: str | None = None
    tags: tuple[str, ...] = ()


class Told(msgspec.Struct):
    """What it was told."""

    session: str
    source: str
    documents: tuple[str, ...]
    stale: bool = False


ASKS = TopicSpec("test-asks", "session", Ask, Direction.IN)
TELLS = TopicSpec("test-tells", "session", Told, Direction.OUT)


@agent(ASKS, outputs=[TELLS])
async def tell(stream: Stream[Ask]) -> None:
    """Tells what a question finds."""

    async def handle(ask: Ask) -> None:
        query = Query(text=ask.text, tenant=ask.tenant, tags=ask.tags, count=3)
        got = await retrievals.retrieve(ask.session, query, ask.ts)
        found = tuple(one.document for one in got.found)
        current_slice().send(TELLS, ask.session, Told(ask.session, got.source, found, got.stale))

    await stream.each(handle, concurrency=4)


class Rehearsal:
    """The agent, a toy embedder, and a library that a test writes to."""

    def __init__(self, trial: InMemory) -> None:
        self.trial = trial
        self.topic = Topic()
        self.knowledge = trial.engine.knowledge

    async def know(self, name: str, text: str, tenant: str | None = None, tags: tuple[str, ...] = ()) -> None:
        document = Document(name, text, tenant=tenant, tags=tags)
        self.topic.announce(document)
        with self.trial.models.embedding() as embedder:
            assert embedder is not None
            making = Making(document, 0, embedder.identity, embedder.tokens.count, {})
            making.put(await embedder.passages(making.next(99, 9999)))
        for content in making.contents(100_000):
            self.topic.put(Key(name, content.part), encode(content))
        await self.knowledge.apply(self.topic.records)

    async def forget(self, name: str) -> None:
        self.topic.delete(name)
        await self.knowledge.apply(self.topic.records)

    async def ask(
        self, text: str, session: str = "ann", at: int = 0, tenant: str | None = None, **more: object
    ) -> Told:
        await self.trial.send(ASKS, [Ask(session, at, text, tenant, **more)])  # type: ignore[arg-type]
        await self.trial.settle()
        return self.trial.outputs(TELLS)[-1].value


@asynccontextmanager
async def rehearsal(folder: Path, qdrant: Qdrant | None = None) -> AsyncIterator[Rehearsal]:
    convert(sentence_folder(folder / "source"), folder / "store", name="small", version="1")
    async with in_memory([tell], [retrievals], model_store=str(folder / "store")) as trial:
        await trial.deploy("small", "1")
        trial.engine.knowledge.qdrant = qdrant
        await trial.engine.knowledge.open(None)
        trial.engine.knowledge.caught_up.set()
        try:
            yield Rehearsal(trial)
        finally:
            await trial.engine.knowledge.close()


async def test_the_same_question_of_a_session_is_answered_from_before(tmp_path: Path) -> None:
    async with rehearsal(tmp_path) as r:
        await r.know("cats", "the cat sleeps at night.")
        await r.know("dogs", "a dog barks at night.")
        first = await r.ask("the cat sleeps at night?")
        assert (first.source, first.documents[0]) == ("search", "cats")
        again = await r.ask("The cat  sleeps at night ?", at=14 * MINUTE)
        assert again.source == "exact"
        assert await r.ask("The cat sleeps at night?", at=10 * MINUTE) == msgspec.structs.replace(first, source="exact")
        assert (await r.ask("The cat sleeps at night?", at=0, session="bob")).source == "search"
        assert (await r.ask("the cat sleeps at night?", tenant="acme")).documents == ()
        assert (await r.ask("the cat sleeps at night?", at=TTL_MS + 15 * MINUTE)).source == "search"


async def test_what_was_deleted_is_not_served_from_before(tmp_path: Path) -> None:
    async with rehearsal(tmp_path) as r:
        await r.know("cats", "the cat sleeps at night.")
        await r.know("dogs", "a dog barks at night.")
        assert "cats" in (await r.ask("the cat sleeps")).documents
        await r.forget("cats")
        told = await r.ask("the cat sleeps")
        assert (told.source, told.documents) == ("search", ("dogs",))
        assert r.knowledge.counts["stale"] == 1


async def test_a_new_document_that_would_be_found_is_a_reason_to_search_again(tmp_path: Path) -> None:
    async with rehearsal(tmp_path) as r:
        for n in range(4):
            await r.know(f"d{n}", "the cat sleeps at night. " * (n + 1))
        await r.ask("a dog barks at day")
        await r.know("other", "a dog barks at day", tenant="acme")  # somebody else's
        assert (await r.ask("a dog barks at day")).source == "exact"
        await r.know("best", "a dog barks at day")
        told = await r.ask("a dog barks at day")
        assert (told.source, told.documents[0]) == ("search", "best")


async def test_a_nearly_equal_question_takes_the_passages_and_a_sample_is_looked_up_all_the_same(
    tmp_path: Path,
) -> None:
    async with rehearsal(tmp_path) as r:
        await r.know("cats", "the cat sleeps at night.")
        await r.ask("the cat sleeps at night and day")
        told = await r.ask("the cat sleeps at night and day .")
        assert told.source == "exact"
        similar_ = await r.ask("a cat sleeps at night and day")
        assert similar_.source in ("similar", "search")
        if similar_.source == "similar":
            assert r.knowledge.counts["compared"] == 1
        assert r.knowledge.counts["wrong"] == 0


async def test_the_same_words_in_other_company_are_a_similar_question_that_is_not_embedded(tmp_path: Path) -> None:
    async with rehearsal(tmp_path) as r:
        await r.know("cats", "the cat sleeps at night.")
        await r.ask("the cat sleeps at night")
        known = set(r.knowledge._vectors)
        told = await r.ask("Where is it that a cat sleeps at the night?")
        assert (told.source, told.documents) == ("similar", ("cats",))
        assert (r.knowledge.counts["similar"], r.knowledge.counts["alike"]) == (1, 1)
        assert len(r.knowledge._vectors) == len(known) + 1  # the first one is looked up all the same, to compare
        await r.ask("what cat sleeps at night")
        assert len(r.knowledge._vectors) == len(known) + 1
        assert (await r.ask("the night sleeps at cat", tenant="acme")).source == "search"


async def test_a_question_that_another_session_has_asked_is_not_embedded_again(tmp_path: Path) -> None:
    async with rehearsal(tmp_path) as r:
        await r.know("cats", "the cat sleeps at night.")
        await r.ask("the cat sleeps")
        with r.trial.models.embedding() as embedder:
            assert embedder is not None
            embedder.close()
        assert (await r.ask("the cat sleeps", session="bob")).source == "search"


async def test_what_a_session_has_found_survives_a_crash_and_its_own_time_ends_it(tmp_path: Path) -> None:
    async with rehearsal(tmp_path) as r:
        await r.know("cats", "the cat sleeps at night.")
        await r.ask("the cat sleeps", at=MINUTE)
        library = r.knowledge._library
        await r.trial.crash()
        r.trial.engine.knowledge._library = library
        r.trial.engine.knowledge.caught_up.set()
        assert (await r.ask("the cat sleeps", at=2 * MINUTE)).source == "exact"
        shard = r.trial.engine.tasks[0].shard("retrievals")
        assert not retrievals.expire(shard, TTL_MS, [])
        assert retrievals.expire(shard, TTL_MS + 2 * MINUTE, [])
        r.trial.engine.tasks[0].touch()  # as whoever asks for it does
        await r.trial.commit()
        assert r.trial.value(retrievals, "ann") is None


def entry(asked: str, at: int = 0, hits: int = 3, size: int = 20) -> Entry:
    found = [
        Found(
            passage="d" * size + f"#{n}",
            document="d",
            title=None,
            url=None,
            headings=(),
            text="",
            start=0,
            end=0,
            score=1.0,
        )
        for n in range(hits)
    ]
    return entry_of(Query(text=asked), vector(asked), "e", found, (1,), at)


def test_a_session_keeps_within_its_budget_what_is_used_most() -> None:
    recalled = Recalled()
    for n in range(200):
        recalled = remembered(recalled, entry(f"question {n}", at=n))
        favourite = exact(recalled, Query(text="question 0"), "e", n)
        assert favourite is not None
        favourite.uses += 1
    assert sum(one.size for one in recalled.entries) <= BUDGET
    assert {"question 0", "question 199"} <= {one.asked for one in recalled.entries}
    assert "question 100" not in {one.asked for one in recalled.entries}
    one_huge = remembered(recalled, entry("huge", at=200, hits=50, size=2000))
    assert [one.asked for one in one_huge.entries] == ["huge"]


def test_what_is_too_old_is_passed_over_and_goes_with_the_next_that_is_written() -> None:
    recalled = remembered(Recalled(), entry("old", at=0))
    assert exact(recalled, Query(text="old"), "e", TTL_MS - 1) is not None
    assert exact(recalled, Query(text="old"), "e", TTL_MS) is None
    assert similar(recalled, Query(text="older"), vector("old"), "e", TTL_MS) is None
    assert [one.asked for one in remembered(recalled, entry("new", at=TTL_MS)).entries] == ["new"]


@pytest.mark.parametrize(
    "query",
    [Query(text="x", tenant="a"), Query(text="x", tenant=""), Query(text="x", tags=("t",)), Query(text="x", count=9)],
)
def test_another_scope_is_another_question(query: Query) -> None:
    recalled = remembered(Recalled(), entry("x"))
    assert exact(recalled, query, "e", 0) is None
    assert similar(recalled, query, vector("x"), "e", 0) is None
    assert exact(recalled, Query(text="x"), "other embedder", 0) is None
    assert similar(recalled, Query(text="x"), np.ones(7, np.float32), "e", 0) is None


def test_a_session_s_cache_is_shown_without_its_vectors() -> None:
    raw = retrievals.encode(remembered(Recalled(), entry("what is it")))
    assert Retrievals.describe(retrievals, None, raw)[0]["asked"] == "what is it"  # type: ignore[arg-type]
