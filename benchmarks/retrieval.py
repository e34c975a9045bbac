"""What knowledge costs: a fresh document while many wait, a question, and a question that was asked before."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.lab import Lab
from benchmarks.registry import Result, benchmark
from core.events import Document
from examples.knowledge.documentation import Question, documents, questions
from examples.knowledge.minilm import minilm
from models.device import Device
from models.embedder import Embedder
from models.inference import InferenceThread
from models.knowledge.fusion import DENSE, LEXICAL
from models.knowledge.library import Library, Record
from models.knowledge.making import Making
from models.knowledge.passage import Passage
from models.knowledge.query import Found, Query
from models.knowledge.recall import Entry, Recalled, alike, entry_of, exact, remembered, similar
from models.knowledge.record import Announced, Content, Key, encode

PLACES: Final = 10
WEIGHTS: Final = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (1.0, 2.0), (1.0, 4.0))
"""Of meaning and of words."""
ROUNDS: Final = 3
"""Of all questions, sides alternating."""
FRAMES: Final = ("what is the {}", "How is it with {}?", "which are the {}s of it", "Why should there be a {}?")
"""Around a heading: what else is asked in its words."""


@benchmark
def retrieval(lab: Lab) -> Iterator[Result]:
    """Questions made of the headings of Faust's documentation (202 pages): are the passages of their sections found?
    And what a question costs that a session has asked before, against one that is embedded and searched."""
    embedder = Embedder(minilm(), Device.of("cpu"), InferenceThread())
    makings = {one.id: made(one, embedder) for one in documents()}
    asked = list(questions({name: making.passages for name, making in makings.items()}))
    vectors = np.stack([embedder.vectors([one.text])[0] for one in asked])
    shelf = library(lab.folder, makings, embedder.identity)
    for dense, lexical in WEIGHTS:
        yield quality(shelf, makings, asked, vectors, embedder.identity, dense, lexical, hidden=False)
    hidden = library(None, {name: without_headings(one, embedder) for name, one in makings.items()}, embedder.identity)
    for dense, lexical in WEIGHTS:
        yield quality(hidden, makings, asked, vectors, embedder.identity, dense, lexical, hidden=True)
    yield from reuse(shelf, asked, embedder, lab)
    shelf.close()


def made(document: Document, embedder: Embedder, known: dict[bytes, bytes] | None = None) -> Making:
    """With its vectors."""
    making = Making(document, 0, embedder.identity, embedder.tokens.count, known or {})
    while making.left:
        making.put(embedder.vectors(making.next(32, 1 << 20)))
    return making


class _Hidden:
    """Passages that don't tell the heading right above them, so that no question's own words stand there."""

    def __init__(self, making: Making, embedder: Embedder) -> None:
        self.passages = [Passage(one.headings[:-1], one.text, one.start, one.end) for one in making.passages]
        texts = [one.embedded(making.title) for one in self.passages]
        self._vectors = embedder.vectors(texts) if texts else np.empty((0, embedder.spec.size), np.float32)
        self._content = making.contents(1 << 40)[0]

    def contents(self, max_record: int) -> list[Content]:
        raw = self._vectors.astype("<f2").tobytes()
        return [
            Content(
                born=0, content=self._content.content, embedder=self._content.embedder, passages=self.passages,
                vectors=raw,
            )
        ]  # fmt: skip


def without_headings(making: Making, embedder: Embedder) -> _Hidden:
    """The harder task."""
    return _Hidden(making, embedder)


def library(folder: Path | None, makings: dict[str, Any], embedder: str, *, mirrored: bool = False) -> Library:
    """All of it."""
    shelf, records = Library(folder, mirrored=mirrored), list[Record]()
    for name, making in makings.items():
        (content,) = making.contents(1 << 40)
        told = Announced(born=0, revision=0, content=content.content, size=1, at=0)
        records.append(Record(0, len(records), Key(name).encode(), encode(told)))
        records.append(Record(0, len(records), Key(name, 0).encode(), encode(content)))
    shelf.apply(records)
    return shelf


class Judged(NamedTuple):
    """How well passages answer a question."""

    gain: float
    """nDCG@10, binary: of the section's passages."""
    share: float
    """Of them that are among the ten."""
    first: float
    """1 where one of them is among five."""


Places = Mapping[tuple[str, int, int], tuple[str, ...]]
"""Document, start and end of each passage -> its headings."""


def places(makings: Mapping[str, Making]) -> Places:
    """Of all documents."""
    return {(name, p.start, p.end): p.headings for name, one in makings.items() for p in one.passages}


def judged(question: Question, found: Sequence[Found], where: Places) -> Judged:
    """found: the best first."""
    right = sum(question.answered_by(name, headings) for (name, _, _), headings in where.items())
    hits = [question.answered_by(one.document, where[one.document, one.start, one.end]) for one in found[:PLACES]]
    ideal = sum(1 / np.log2(n + 2) for n in range(min(PLACES, right)))
    gain = sum(hit / np.log2(n + 2) for n, hit in enumerate(hits)) / ideal
    return Judged(float(gain), sum(hits) / min(PLACES, right), float(any(hits[:5])))


def quality(
    shelf: Library,
    makings: dict[str, Making],
    asked: Sequence[Question],
    vectors: np.ndarray[Any, np.dtype[np.float32]],
    embedder: str,
    dense: float,
    lexical: float,
    *,
    hidden: bool,
) -> Result:
    """nDCG@10 (binary, of the section's passages), the share of them found, and of questions with one among five."""
    where = places(makings)
    gains, shares, firsts = zip(
        *(
            judged(
                question, shelf.search(Query(text=question.text, count=PLACES), vector, embedder, dense, lexical), where
            )
            for question, vector in zip(asked, vectors, strict=True)
        ),
        strict=True,
    )
    return Result(
        "retrieval.ndcg10",
        statistics.fmean(gains),
        "1",
        {
            "meaning": dense,
            "words": lexical,
            "default": (dense, lexical) == (DENSE, LEXICAL),
            "headings_in_passages": not hidden,
            "questions": len(asked),
            "standard_error": round(statistics.stdev(gains) / len(gains) ** 0.5, 4),
            "recall10": round(statistics.fmean(shares), 4),
            "one_of_five": round(statistics.fmean(firsts), 4),
        },
    )


def reuse(shelf: Library, asked: Sequence[Question], embedder: Embedder, lab: Lab) -> Iterator[Result]:
    """One thread, everything in process. A hit looks its passages up again: what is deleted must not come."""
    times: dict[str, list[float]] = {"search": [], "exact": [], "alike": [], "similar": []}
    wrong = list[bool]()
    for question in asked[: 5 * ROUNDS]:  # what is cold
        shelf.search(Query(text=question.text), embedder.vectors([question.text])[0], embedder.identity)
    for _ in range(ROUNDS):
        for number, question in enumerate(asked):
            query = Query(text=question.text)
            recalled = Recalled()
            for other in asked[max(0, number - 16) : number]:  # what a session has asked before it
                recalled = remembered(recalled, _entry(shelf, other, embedder))
            began = time.perf_counter()
            vector = embedder.vectors([query.text])[0]
            found = shelf.search(query, vector, embedder.identity)
            times["search"].append(time.perf_counter() - began)
            recalled = remembered(recalled, entry_of(query, vector, embedder.identity, found, shelf.version, 0))
            began = time.perf_counter()
            entry = exact(recalled, Query(text=f"{question.text}?"), embedder.identity, 1)
            entry = entry or exact(recalled, query, embedder.identity, 1)
            assert entry is not None
            again = shelf.again(query, entry.hits, vector, entry.version)
            times["exact"].append(time.perf_counter() - began)
            assert again is not None
            assert [one.passage for one in again] == [one.passage for one in found]
            other_words = Query(text=FRAMES[number % len(FRAMES)].format(question.text))
            began = time.perf_counter()
            entry = exact(recalled, other_words, embedder.identity, 1)
            entry = entry or alike(recalled, other_words, embedder.identity, 1)
            again = None if entry is None else shelf.again(other_words, entry.hits, vector, entry.version)
            if again is not None:
                times["alike"].append(time.perf_counter() - began)
                right = shelf.search(other_words, embedder.vectors([other_words.text])[0], embedder.identity)
                there = {one.passage for one in again}
                wrong.append(2 * sum(one.passage in there for one in right) < len(right))
            began = time.perf_counter()
            near = similar(recalled, query, embedder.vectors([query.text])[0], embedder.identity, 1)
            assert near is not None
            shelf.again(query, near.hits, vector, near.version)
            times["similar"].append(time.perf_counter() - began)
    rates = {name: len(some) / sum(some) for name, some in times.items()}
    p95 = {name: 1e3 * float(np.percentile(some, 95)) for name, some in times.items()}
    conditions = lab.conditions(questions=len(asked), passages=shelf.status(None)["passages"], rounds=ROUNDS)
    yield Result("retrieval.searched", rates["search"], "questions/s", conditions, {"p95_ms": p95["search"]})
    goal = ">= 3.2 times, a quarter of the p95"
    for name in ("exact", "alike", "similar"):
        parts = {
            "times": rates[name] / rates["search"],
            "p95_ms": p95[name],
            "share_of_p95": p95[name] / p95["search"],
        }
        if name == "alike":
            parts |= {"share_of_variants": len(wrong) / len(times["search"]), "wrong": sum(wrong) / len(wrong)}
        yield Result(f"retrieval.{name}", rates[name], "questions/s", conditions, parts, goal)


def _entry(shelf: Library, question: Question, embedder: Embedder) -> Entry:
    """One that is asked, and not the one that is looked for."""
    vector = np.ones(embedder.spec.size, np.float32) / embedder.spec.size**0.5
    return entry_of(Query(text=question.text), vector, embedder.identity, [], shelf.version, 0)
