"""Qdrant in the place of vectors in memory: told of every change, whatever fails meanwhile, and believed in nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from agents import mirror
from agents.mirror import Mirror
from core.errors import CollectionError, QdrantError, SettingsError
from core.events import Document
from core.settings import Settings
from models.knowledge import qdrant as module
from models.knowledge.library import Library
from models.knowledge.qdrant import Qdrant
from models.knowledge.query import Query
from tests.qdrant import KEY, StandIn
from tests.qdrant_grpc import GrpcStandIn
from tests.unit.knowledge.shelving import EMBEDDER, Topic, apply, vector
from tests.unit.knowledge.test_retrievals import Rehearsal, rehearsal

SIZE = 32
pytestmark = pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")


@pytest.fixture(params=[StandIn, GrpcStandIn], ids=["http", "grpc"])
def server(request: pytest.FixtureRequest) -> Iterator[StandIn]:
    server: StandIn = request.param()
    yield server
    server.stop()


@asynccontextmanager
async def connected(server: StandIn, key: str = KEY) -> AsyncIterator[Qdrant]:
    qdrant = Qdrant(server.url, key, "app", server.grpc_port)
    try:
        yield qdrant
    finally:
        await qdrant.close()


async def tell(library: Library, qdrant: Qdrant, partitions: tuple[int, ...] = (0,)) -> None:
    """All that waits, as the owner of these partitions does."""
    assert library.outbox is not None
    await qdrant.open(SIZE)
    while (due := library.outbox.due(partitions, SIZE, 7)).turns:
        if due.puts:
            await qdrant.put(due.puts)
        if due.deletes:
            await qdrant.delete(due.deletes)
        library.outbox.done(due)


async def answers(qdrant: Qdrant, within_s: float = 5) -> None:
    """It does again: a channel of gRPC that was refused waits a moment before it looks anew."""
    qdrant.again()
    async with asyncio.timeout(within_s):
        while qdrant.error is not None:
            with suppress(QdrantError):
                await qdrant.open(SIZE)
            await asyncio.sleep(0.01)


def passages(server: StandIn) -> list[str]:
    """What the points say they are."""
    return sorted(str((point.payload or {})["passage"]) for point in server.points("app"))


def known(library: Library) -> list[str]:
    """Passages that have a vector."""
    with library._reading() as db:
        rows = db.execute("SELECT d.name, p.hash FROM passages p JOIN documents d ON d.id = p.document")
        return sorted({f"{name}#{hashed.hex()}" for name, hashed in rows})


async def ask(library: Library, qdrant: Qdrant, text: str, **more: object) -> list[str]:
    """Documents by meaning alone."""
    query = Query(text=text, count=50, **more)  # type: ignore[arg-type]
    told = await qdrant.nearest(query, vector(text), EMBEDDER, 50)
    return [one.document for one in library.search(query, vector(text), EMBEDDER, lexical=0, told=told)]


async def test_each_tenant_finds_its_own_and_tags_narrow_it(server: StandIn) -> None:
    topic = Topic()
    topic.add("ours", "The cat sleeps.", tags=("a", "b"))
    topic.add("acme's", "The cat sleeps.", tenant="acme", tags=("a",))
    topic.add("nameless", "The cat sleeps.", tenant="")
    library = apply(Library(None, mirrored=True), topic)
    assert library.status(EMBEDDER)["vector_bytes"] == 0
    async with connected(server) as qdrant:
        await tell(library, qdrant)
        assert await ask(library, qdrant, "cat") == ["ours"]
        assert await ask(library, qdrant, "cat", tags=("a", "b")) == ["ours"]
        assert await ask(library, qdrant, "cat", tags=("a", "c")) == []
        assert await ask(library, qdrant, "cat", tenant="acme") == ["acme's"]
        assert await ask(library, qdrant, "cat", tenant="acme", tags=("b",)) == []
        assert await ask(library, qdrant, "cat", tenant="") == ["nameless"]
        assert await ask(library, qdrant, "cat", tenant="other") == []


async def test_what_the_library_has_no_more_is_not_found_even_while_its_point_is_there(server: StandIn) -> None:
    topic = Topic()
    topic.add("secret", "The code is 1234.")
    topic.add("moved", "The code is 1235.")
    library = apply(Library(None, mirrored=True), topic)
    async with connected(server) as qdrant:
        await tell(library, qdrant)
        topic.delete("secret")
        topic.add("moved", "The code is 1235.", tenant="acme")
        apply(library, topic)
        assert len(server.points("app")) == 2  # it hasn't been told yet
        assert await ask(library, qdrant, "code is") == []
        assert await ask(library, qdrant, "code is", tenant="acme") == []
        await tell(library, qdrant)
        assert await ask(library, qdrant, "code is", tenant="acme") == ["moved"]
        assert passages(server) == known(library)


async def test_whatever_changes_fails_and_starts_anew_the_points_are_the_library_s(
    server: StandIn, tmp_path: Path
) -> None:
    dice, topic = random.Random(3), Topic()
    library = Library(tmp_path, mirrored=True)
    async with connected(server) as qdrant:
        for number in range(80):
            name = f"d{dice.randrange(6)}"
            if dice.random() < 0.3:
                topic.delete(name)
            else:
                texts = [f"text {dice.randrange(4)}." for _ in range(dice.randrange(1, 4))]
                topic.add(name, *texts, tenant=dice.choice([None, "acme"]), born=number)
            apply(library, topic)
            match dice.randrange(8):
                case 0:
                    library.close()
                    library = Library(tmp_path, mirrored=True)
                    assert library.rebuilt is None
                case 1:
                    server.stop()
                    with suppress(QdrantError):
                        await tell(library, qdrant)
                    server.start()
                    await answers(qdrant)
                case 2:
                    await tell(library, qdrant)
        await tell(library, qdrant)
        assert passages(server) == known(library)
        versions = await qdrant.versions(0)
        assert library.outbox is not None
        assert library.outbox.compare(0, SIZE, versions) == 0
        library.close()


async def test_a_server_that_came_back_with_other_points_is_put_right(server: StandIn) -> None:
    topic, mine = Topic(), Topic(partition=1)
    topic.add("a", "One.", "Two.")
    topic.add("b", "Three.")
    mine.add("mine", "Four.")
    library = apply(Library(None, mirrored=True), topic, mine)
    async with connected(server) as qdrant:
        await tell(library, qdrant, (0, 1))
        before = passages(server)
        former = library.outbox and library.outbox.compare(0, SIZE, {}) and library.outbox.due([0], SIZE, 99)
        assert former
        library.outbox.done(former)  # type: ignore[union-attr]
        topic.delete("b")
        await tell(apply(library, topic), qdrant, (0, 1))
        await qdrant.put(former.puts)  # a former owner's last write comes too late
        await qdrant.delete([point.key for point in former.puts if point.passage.startswith("a#")][:1])
        assert passages(server) != known(library)
        assert library.outbox is not None
        assert library.outbox.compare(0, SIZE, await qdrant.versions(0)) == 2
        await tell(library, qdrant)
        assert passages(server) == known(library) == [one for one in before if not one.startswith("b#")]


async def test_another_embedder_s_vectors_take_the_place_of_the_old_ones(server: StandIn) -> None:
    topic = Topic()
    topic.add("page", "A text.")
    library = apply(Library(None, mirrored=True), topic)
    async with connected(server) as qdrant:
        await tell(library, qdrant)
        topic.make(Document("page", "A text."), ["A text."], embedder="e22")
        await tell(apply(library, topic), qdrant)
        assert await ask(library, qdrant, "text") == []
        (point,) = server.points("app")
        assert (point.payload or {})["embedder"] == "e22"


@pytest.mark.parametrize(("size", "distance"), [(SIZE + 1, "Cosine"), (SIZE, "Euclid")])
async def test_a_collection_of_another_kind_is_a_clear_error_and_is_left_alone(
    server: StandIn, size: int, distance: str
) -> None:
    from qdrant_client.models import Distance, VectorParams

    server.data.create_collection("app", VectorParams(size=size, distance=Distance(distance)))
    async with connected(server) as qdrant:
        with pytest.raises(CollectionError, match=f"app has vectors of {size} components by {distance}, not of 32"):
            await qdrant.open(SIZE)
        with pytest.raises(QdrantError):
            await qdrant.nearest(Query(text="x"), vector("x"), EMBEDDER, 5)
    assert server.points("app") == []


async def test_a_wrong_key_is_said_and_not_shown(server: StandIn) -> None:
    async with connected(server, "another-key") as qdrant:
        with pytest.raises(QdrantError, match=r"403|UNAUTHENTICATED: Invalid API key") as failed:
            await qdrant.open(SIZE)
        assert "another-key" not in str(failed.value)


async def test_a_server_that_says_nothing_costs_one_question_its_limit_and_others_nothing(
    server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEARCH_S", 0.2)
    loop = asyncio.get_running_loop()
    async with connected(server) as qdrant:
        await qdrant.open(SIZE)
        server.hang()
        began = loop.time()
        for _ in range(50):
            with pytest.raises(QdrantError):
                await qdrant.nearest(Query(text="x"), vector("x"), EMBEDDER, 5)
        assert loop.time() - began < 2


def test_the_key_may_be_a_file_and_nothing_that_shows_the_settings_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    monkeypatch.setenv("HOMUNCULUS_QDRANT_URL", "http://qdrant:6333")
    monkeypatch.setenv("HOMUNCULUS_QDRANT_API_KEY_FILE", str(tmp_path / "key"))
    settings = Settings.read()
    assert settings.qdrant_api_key is not None
    assert settings.qdrant_api_key.get_secret_value() == KEY
    assert KEY not in repr(settings)
    monkeypatch.setenv("HOMUNCULUS_QDRANT_URL", "qdrant:6333")
    with pytest.raises(SettingsError, match="HOMUNCULUS_QDRANT_URL"):
        Settings.read()


@asynccontextmanager
async def mirrored(folder: Path, server: StandIn) -> AsyncIterator[Rehearsal]:
    """A worker's own parts in memory, with the task that tells Qdrant."""
    qdrant = Qdrant(server.url, KEY, "app", server.grpc_port)
    async with rehearsal(folder, qdrant) as r:
        work = asyncio.create_task(Mirror(r.trial.engine, qdrant).run())
        try:
            yield r
        finally:
            work.cancel()


async def until(condition: Callable[[], bool], within_s: float = 20) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


async def test_while_qdrant_is_away_words_answer_and_what_came_meanwhile_is_there_after_it(
    server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "RETRY_S", 0.05)
    monkeypatch.setattr(mirror, "IDLE_S", 0.05)
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    async with mirrored(tmp_path, server) as r:
        await r.know("cats", "the cat sleeps at night.")
        await until(lambda: len(server.points("app")) == 1)
        assert not (await r.ask("the cat sleeps")).stale
        server.stop()
        await r.know("dogs", "a dog barks at night.")
        told = await r.ask("what dog barks")
        assert (told.source, told.documents, told.stale) == ("search", ("dogs",), True)
        assert (await r.ask("what dog barks")).source == "search"  # what words alone have found isn't kept
        await r.forget("cats")
        assert (await r.ask("the cat sleeps")).documents == ()
        status = await r.knowledge.status()
        assert status["qdrant"]["waiting"] == 2
        assert "http://127.0.0.1" in status["qdrant"]["error"]
        server.lose()
        server.start()
        await until(lambda: [one.split("#")[0] for one in passages(server)] == ["dogs"])
        told = await r.ask("what dog barks")
        assert (told.documents, told.stale) == (("dogs",), False)
        assert (await r.ask("what dog barks")).source == "exact"
        assert (await r.knowledge.status())["qdrant"] == {"collection": "app", "error": None, "waiting": 0}
        assert np.isfinite((await r.knowledge.asked("dog")).vector).all()  # type: ignore[arg-type]
