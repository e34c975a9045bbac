"""The library of a worker: what it finds, what it must never find again, and what it is after a crash."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from core.events import Document
from models.knowledge.library import FILE, FRESH_S, Library, Record
from models.knowledge.query import Query
from models.knowledge.record import Key
from tests.unit.knowledge.shelving import EMBEDDER, Topic, apply, vector


def found(library: Library, text: str, tenant: str | None = None, tags: tuple[str, ...] = ()) -> list[str]:
    """Documents, the best first."""
    answers = library.search(Query(text=text, tenant=tenant, tags=tags, count=50), vector(text), EMBEDDER)
    return list(dict.fromkeys(answer.document for answer in answers))


def test_a_passage_is_found_by_its_words_and_by_its_meaning() -> None:
    topic = Topic()
    topic.add("cats", "Cats sleep all day.", "They hunt at night.")
    topic.add("dogs", "Dogs bark at strangers.")
    library = apply(Library(None), topic)
    first = library.search(Query(text="what do dogs bark at"), vector("dogs bark at"), EMBEDDER)[0]
    assert (first.document, first.text) == ("dogs", "Dogs bark at strangers.")
    assert first.cosine is not None
    assert first.bm25 is not None
    assert library.search(Query(text="barking"))[0].document == "dogs"  # without an embedder, by words alone
    assert library.search(Query(text="?!")) == []


def test_a_deleted_document_is_never_found_again() -> None:
    topic = Topic()
    topic.add("secret", "The code of the safe is 1234.")
    topic.delete("secret")
    library = apply(Library(None), topic)
    assert found(library, "code of the safe") == []
    assert library.status(EMBEDDER)["passages"] == 0
    # What a former owner still writes of it comes too late, and is to be taken away.
    topic.make(Document("secret", "The code of the safe is 1234."), ["The code of the safe is 1234."])
    apply(library, topic)
    assert found(library, "code of the safe") == []
    assert library.stale([0], 10) == [(0, Key("secret", 0).encode())]
    topic.put(Key("secret", 0), None)
    assert apply(library, topic).stale([0], 10) == []


def test_what_was_made_of_a_former_life_is_void() -> None:
    topic = Topic()
    topic.add("page", "Old text.")
    topic.delete("page")
    topic.announce(Document("page", "New text."), born=7)
    topic.make(Document("page", "New text."), ["Old text."], born=0)
    library = apply(Library(None), topic)
    assert found(library, "old text") == []
    topic.make(Document("page", "New text."), ["New text."], born=7)
    assert found(apply(library, topic), "new text") == ["page"]


def test_a_changed_document_answers_as_before_until_its_new_passages_are_there() -> None:
    topic = Topic()
    topic.add("page", "The first text.", "What stays.")
    library = apply(Library(None), topic)
    stays = next(one for one in library.search(Query(text="stays")) if one.text == "What stays.")
    changed = Document("page", "The second text.\n\nWhat stays.")
    topic.announce(changed)
    assert found(apply(library, topic), "first") == ["page"]
    assert [one.name for one in library.pending([0], EMBEDDER, 5, newest=True, most=1000)] == ["page"]
    topic.make(changed, ["The second text.", "What stays."])
    apply(library, topic)
    texts = [one.text for one in library.search(Query(text="first second text stays"))]
    assert "The first text." not in texts
    assert "The second text." in texts
    assert stays.passage in {one.passage for one in library.search(Query(text="stays"))}
    assert library.pending([0], EMBEDDER, 5, newest=True, most=1000) == []


def test_parts_of_a_large_document_count_once_all_are_there() -> None:
    topic = Topic()
    document = Document("book", "One. Two. Three.")
    topic.announce(document)
    topic.make(document, ["Chapter one.", "Chapter two.", "Chapter three."], parts=3)
    library = Library(None)
    library.apply(topic.records[:3])
    assert found(library, "chapter") == []
    assert library.pending([0], EMBEDDER, 5, newest=False, most=1000)
    apply(library, topic)
    assert len(library.search(Query(text="chapter"))) == 3
    smaller = Document("book", "Less.")
    topic.announce(smaller)
    topic.make(smaller, ["Less."])
    apply(library, topic)
    assert sorted(library.stale([0], 10)) == [(0, Key("book", 1).encode()), (0, Key("book", 2).encode())]


def test_another_embedder_asks_for_other_vectors_and_never_compares_them_with_the_old_ones() -> None:
    topic = Topic()
    topic.add("page", "A text.")
    library = apply(Library(None), topic)
    assert library.pending([0], "e22", 5, newest=True, most=1000)[0].name == "page"
    assert library.reader.nearest(Query(text="text"), vector("text", "e22"), "e22") == []
    topic.make(Document("page", "A text."), ["A text."], embedder="e22")
    apply(library, topic)
    assert library.reader.nearest(Query(text="text"), vector("text"), EMBEDDER) == []
    assert len(library.reader.nearest(Query(text="text"), vector("text", "e22"), "e22")) == 1
    assert library.pending([0], "e22", 5, newest=True, most=1000) == []


def test_the_newest_document_is_next_and_a_large_one_is_left_out_where_small_ones_are_asked_for() -> None:
    topic = Topic()
    for name, size in (("a", 10), ("b", 5000), ("c", 10)):
        topic.announce(Document(name, "x" * size))
    library = apply(Library(None), topic)
    assert [one.name for one in library.pending([0], "", 9, newest=True, most=9999)] == ["c", "b", "a"]
    assert [one.name for one in library.pending([0], "", 9, newest=False, most=100)] == ["a", "c"]
    assert library.pending([1], "", 9, newest=True, most=9999) == []
    assert library.pending([], "", 9, newest=True, most=9999) == []


def test_tags_that_a_question_names_are_all_wanted() -> None:
    topic = Topic()
    topic.add("a", "Prices of apples.", tags=("fruit", "price"))
    topic.add("b", "Prices of pears.", tags=("fruit",))
    library = apply(Library(None), topic)
    assert set(found(library, "prices", tags=("fruit",))) == {"a", "b"}
    assert found(library, "prices", tags=("price", "fruit")) == ["a"]
    assert found(library, "prices", tags=("other",)) == []
    topic.announce(Document("a", "Prices of apples.", tags=("fruit",)))
    assert found(apply(library, topic), "prices", tags=("price",)) == []


@pytest.mark.parametrize(
    "asked", ["wolf", 'wolf" OR tenant:"', "t* wolf", "wolf) OR (words : wolf", "NEAR(wolf)", "x' --"]
)
def test_nobody_finds_what_belongs_to_another_tenant(asked: str) -> None:
    topic = Topic()
    for tenant in ("acme", "Acme", "acme ", "none", "", None):
        topic.add(f"of {tenant!r}", f"The wolf of {tenant!r}.", tenant=tenant)
    library = apply(Library(None), topic)
    for tenant in ("acme", "Acme", "acme ", "none", "", None, "acme%", "*", "other"):
        expected = {f"of {tenant!r}"} if tenant in ("acme", "Acme", "acme ", "none", "", None) else set()
        assert set(found(library, asked, tenant=tenant)) <= expected
    assert found(library, "wolf", tenant="acme") == ["of 'acme'"]


def test_a_document_that_moves_to_another_tenant_leaves_the_first() -> None:
    topic = Topic()
    topic.add("page", "The wolf.", tenant="a")
    topic.announce(Document("page", "The wolf.", tenant="b"))
    library = apply(Library(None), topic)
    assert found(library, "wolf", tenant="a") == []
    assert found(library, "wolf", tenant="b") == ["page"]
    assert library.reader.nearest(Query(text="wolf", tenant="a"), vector("wolf"), EMBEDDER) == []


def test_records_that_are_none_of_ours_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    library = Library(None)
    library.apply([Record(0, 0, b"a\xffb", b""), Record(0, 1, b"a", b"nonsense"), Record(0, 2, b"\xc3(", None)])
    assert library.positions == {0: 3}
    assert caplog.text.count("none of ours") == 3


def random_topic(steps: int, seed: int) -> Topic:
    """Documents that come, change and go."""
    dice, topic = random.Random(seed), Topic()
    words = ["wolf", "sheep", "goat", "cabbage", "river", "boat", "farmer", "night"]
    born: dict[str, int] = {}
    for _ in range(steps):
        name = f"d{dice.randrange(12)}"
        texts = [" ".join(dice.choices(words, k=4)) + "." for _ in range(dice.randint(0, 4))]
        if name in born and dice.random() < 0.3:
            topic.delete(name)
            del born[name]
            continue
        born.setdefault(name, len(topic.records))
        document = Document(
            name, "\n\n".join(texts), tenant=dice.choice([None, "a"]), tags=tuple(dice.sample(words, 2))
        )
        topic.announce(document, born[name])
        if dice.random() < 0.8:
            topic.make(document, texts, born[name], embedder=dice.choice([EMBEDDER, EMBEDDER, "e22"]))
    return topic


def everything(library: Library) -> list[object]:
    """What can be seen of it."""
    told: list[object] = []
    for tenant in (None, "a"):
        for text in ("wolf", "sheep goat", "boat on the river"):
            for embedder in (EMBEDDER, "e22"):
                query = Query(text=text, tenant=tenant, count=50)
                answers = library.search(query, vector(text, embedder), embedder)
                told.append(sorted((a.passage, a.text, round(a.cosine or 0.0, 5)) for a in answers))
    return [*told, library.status(EMBEDDER) | {"vector_bytes": 0}, sorted(library.stale([0], 99))]


@pytest.mark.parametrize("seed", range(6))
def test_after_a_restart_and_after_a_rebuild_it_answers_the_same(tmp_path: Path, seed: int) -> None:
    topic, dice = random_topic(60, seed), random.Random(seed)
    whole = apply(Library(None), topic)
    at, library = 0, Library(tmp_path)
    while at < len(topic.records):
        size = dice.randint(1, 9)
        library.apply(topic.records[at : at + size])
        at += size
        if dice.random() < 0.3:
            library.close()
            library = Library(tmp_path)
            assert library.rebuilt is None
            at = library.positions[0]
    library.apply(topic.records[:10])  # what was applied before does nothing
    assert everything(library) == everything(whole)
    library.close()
    again = Library(tmp_path)
    assert again.rebuilt is None
    assert everything(again) == everything(whole)
    again.close()


def test_what_was_cut_off_in_the_middle_is_as_if_it_had_not_begun(tmp_path: Path) -> None:
    topic = Topic()
    topic.add("a", "A wolf.")
    library = apply(Library(tmp_path), topic)
    topic.add("b", "A sheep.")
    bad = [*topic.records, None]
    with pytest.raises(AttributeError):
        library.apply(bad)  # type: ignore[arg-type]
    assert found(library, "sheep") == ["a"]  # the nearest that there is
    assert library.positions == {0: 2}
    assert found(apply(library, topic), "sheep") == ["b", "a"]
    library.close()


@pytest.mark.parametrize("harm", ["count", "schema", "age", "garbage", "page"])
def test_what_is_wrong_on_disk_is_built_anew(tmp_path: Path, harm: str) -> None:
    topic = Topic()
    for number in range(200):
        topic.add(f"d{number}", f"A wolf number {number}.")
    apply(Library(tmp_path), topic).close()
    file = tmp_path / FILE
    if harm in ("count", "schema", "age"):
        with sqlite3.connect(file) as db:
            db.execute(
                {
                    "count": "DELETE FROM passages WHERE id = 1",
                    "schema": "UPDATE about SET value = 99 WHERE name = 'schema'",
                    "age": f"UPDATE about SET value = value - {FRESH_S + 1} WHERE name = 'at'",
                }[harm]
            )
        db.close()
    else:
        raw = bytearray(file.read_bytes())
        raw[0 if harm == "garbage" else 3 * 4096 : 8192 if harm == "garbage" else 4 * 4096] = b"\x55" * (
            8192 if harm == "garbage" else 4096
        )
        file.write_bytes(raw)
    library = Library(tmp_path)
    assert library.rebuilt
    assert library.positions == {}
    assert len(apply(library, topic).search(Query(text="wolf", count=50))) == 50
    library.close()


def test_parts_of_a_document_that_goes_before_it_is_whole_are_taken_away_too() -> None:
    topic, document = Topic(), Document("book", "One. Two.")
    topic.announce(document)
    topic.make(document, ["Chapter one.", "Chapter two."], parts=2)
    library = Library(None)
    library.apply(topic.records[:2])
    topic.delete("book")
    library.apply([Record(0, 2, *topic.records[-1][2:])])
    assert library.stale([0], 9) == [(0, Key("book", 0).encode())]
