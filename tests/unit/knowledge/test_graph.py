"""The approximate index of a tenant with very many passages: nearly what all of them say, and never what is gone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from models.knowledge import shelf as module
from models.knowledge.library import Library
from models.knowledge.query import Query
from models.knowledge.shelf import Near, Shelf
from models.knowledge.shelves import GRAPH
from tests.unit.knowledge.shelving import EMBEDDER, Topic, apply, vector

SIZE = 48


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE", 200)
    monkeypatch.setattr(module, "BEHIND", 50)


def drawn(count: int, seed: int = 1) -> NDArray[np.float32]:
    """In clusters, as texts are."""
    draw = np.random.default_rng(seed)
    rows = draw.standard_normal((40, SIZE))[draw.integers(0, 40, count)] + 0.7 * draw.standard_normal((count, SIZE))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def filled(rows: NDArray[np.float32]) -> Shelf:
    shelf = Shelf(SIZE)
    ids = list(range(1, len(rows) + 1))
    shelf.put(7, ids, [1000 + one for one in ids], rows)
    return shelf


def whole(shelf: Shelf) -> Shelf:
    while shelf.index(100):
        pass
    return shelf


def ids(found: list[Near]) -> list[int]:
    return [one.id for one in found]


def test_it_finds_nearly_all_that_an_exact_search_finds_with_exact_cosines() -> None:
    rows, asked = drawn(4000), drawn(100, seed=1)
    exact, shelf = filled(rows), whole(filled(rows))
    shares = []
    for vector_ in asked:
        found, right = shelf.nearest(vector_, 20), exact.nearest(vector_, 20)
        shares.append(len({*ids(found)} & {*ids(right)}) / 20)
        cosines = {one.id: one.cosine for one in right}
        assert all(abs(one.cosine - cosines.get(one.id, one.cosine)) < 1e-5 for one in found)
    assert np.mean(shares) > 0.97


def test_what_was_removed_or_replaced_is_never_found_and_what_is_new_is_at_once() -> None:
    rows = drawn(1000)
    shelf = whole(filled(rows))
    shelf.remove(range(1, 500))
    assert min(one for vector_ in rows[:200] for one in ids(shelf.nearest(vector_, 30))) >= 500
    other = drawn(1, seed=9)
    shelf.put(7, [600], [1600], other)
    shelf.put(7, [5000], [6000], rows[:1])
    for _ in range(2):
        assert ids(shelf.nearest(rows[0], 1)) == [5000]
        assert ids(shelf.nearest(other[0], 1)) == [600]
        assert 600 not in ids(shelf.nearest(rows[599], 30)) or other[0] @ rows[599] > 0.3
        whole(shelf)
    assert ids(shelf.nearest(rows[700], 9, np.array([8]))) == []
    shelf.remove(range(500, 950))
    shelf.index(1)  # few again: all are compared
    assert set(ids(shelf.nearest(rows[0], 9999))) == {*range(950, 1001), 5000}


def test_while_it_is_being_made_questions_are_answered_exactly() -> None:
    rows = drawn(1000)
    exact, shelf = filled(rows), filled(rows)
    for _ in range(5):
        shelf.index(30)
        assert ids(shelf.nearest(rows[3], 20)) == ids(exact.nearest(rows[3], 20))


def library(folder: Path, topic: Topic) -> Library:
    made = apply(Library(folder), topic)
    while made.index(100):
        pass
    return made


def answers(library: Library, topic: str = "") -> list[list[str]]:
    return [
        [one.passage for one in library.search(Query(text=text, count=20), vector(text), EMBEDDER, lexical=0)]
        for text in (f"{topic}number {n} of many" for n in range(0, 300, 7))
    ]


def many(count: int = 300) -> Topic:
    topic = Topic()
    for n in range(count):
        topic.add(f"d{n}", f"This is number {n} of many, {'abcdefghij'[n % 10] * (n % 17)}.")
    return topic


def graphs(folder: Path) -> list[Path]:
    return list(folder.glob(f"{GRAPH}*"))


def test_after_a_restart_it_answers_the_same_and_makes_nothing_again(tmp_path: Path) -> None:
    first = library(tmp_path, many())
    expected = answers(first)
    first.close()
    assert len(graphs(tmp_path)) == 1
    second = Library(tmp_path)
    assert answers(second) == expected
    (shelf,) = second._shelves._shelves.values()
    assert shelf._graph is not None
    assert len(shelf._graph) == 300
    assert second.index(1) == 0
    second.close()


@pytest.mark.parametrize("harm", ["killed", "damaged", "cut", "ahead", "lost", "another"])
def test_a_file_that_disagrees_is_put_right_or_made_anew(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = many()
    first = library(tmp_path, topic)
    first.save(1)
    (file,) = graphs(tmp_path)
    if harm == "killed":  # the library went on, and no newer file was written
        for n in range(0, 100, 2):
            topic.delete(f"d{n}")
        topic.add("new", "This is number 17 of many, the newest.")
        apply(first, topic)
    raw = file.read_bytes()
    for db in {first._write, first._read}:
        db.close()
    match harm:
        case "damaged":
            file.write_bytes(raw[:5000] + bytes([raw[5000] ^ 1]) + raw[5001:])
        case "cut":
            file.write_bytes(raw[: len(raw) // 2])
        case "lost":
            file.unlink()
        case "ahead":
            for name in ("knowledge.sqlite", "knowledge.sqlite-wal", "knowledge.sqlite-shm"):
                (tmp_path / name).unlink(missing_ok=True)
            file.write_bytes(raw)
            library(tmp_path, topic).close()  # built anew from the topic: the old graphs went with it
        case "another":
            (tmp_path / f"{GRAPH}of-nobody").write_bytes(raw)
    second = library(tmp_path, topic)
    assert second.rebuilt is None
    exact = apply(Library(None), topic)
    told, right = answers(second), answers(exact)
    alike = [len(set(a) & set(b)) / len(b) for a, b in zip(told, right, strict=True)]
    assert np.mean(alike) > 0.97
    there = {passage for one in told for passage in one}
    if harm == "killed":
        assert not {f"d{n}" for n in range(0, 100, 2)} & {passage.split("#")[0] for passage in there}
    assert ("built anew" in caplog.text) == (harm in ("damaged", "cut"))
    second.close()
    assert graphs(tmp_path) == [file]


def test_another_tenant_s_passages_are_in_another_graph(tmp_path: Path) -> None:
    topic = many(250)
    for n in range(250):
        topic.add(f"acme{n}", f"This is number {n} of many.", tenant="acme")
    both = library(tmp_path, topic)
    both.save(1)
    assert len(graphs(tmp_path)) == 2
    query = Query(text="number 3 of many", tenant="acme", count=50)
    found = both.search(query, vector(query.text), EMBEDDER)
    assert {one.document[:4] for one in found} == {"acme"}
    both.close()
