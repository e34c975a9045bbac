"""What a question costs that a session has asked before, where vectors are compared in process, and by qdrant-client.

No Qdrant is to be had here: the client's own local mode answers behind HTTP, in a process of its own. It compares
vectors as Python does, so it is slower than a real server; beside it stands one that has each answer ready, which no
real server can be quicker than: what is left then is the client, HTTP and the library."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.lab import Lab
from benchmarks.registry import Result, benchmark
from benchmarks.retrieval import FRAMES, library, made
from examples.knowledge.documentation import documents, questions
from examples.knowledge.minilm import minilm
from examples.knowledge.trec import questions as trec
from models.device import Device
from models.embedder import Embedder
from models.inference import InferenceThread
from models.knowledge.library import Library
from models.knowledge.qdrant import Qdrant
from models.knowledge.query import Found, Query
from models.knowledge.recall import Recalled, alike, entry_of, exact, remembered, similar
from models.knowledge.search import DEPTH
from tests.qdrant import KEY, StandIn

ROUNDS: Final = 3
"""Of all questions that count; one before them warms up servers and caches."""
BEFORE: Final = 16
"""Questions that a session has asked before: about as many as it has room for."""
SIDES: Final = ("in_process", "qdrant", "qdrant_at_once")
"""Where a question is embedded and searched."""
HITS: Final = ("exact", "alike")
SPOOLED: Final = 500
Vector = NDArray[np.float32]


@benchmark
def qdrant(lab: Lab) -> Iterator[Result]:
    """A question that a session has asked before against one that is embedded and searched, in process and through
    qdrant-client; and how often real questions are."""
    embedder = Embedder(minilm(), Device.of("cpu"), InferenceThread())
    makings = {one.id: made(one, embedder) for one in documents()}
    asked = list(questions({name: making.passages for name, making in makings.items()}))
    own = library(None, makings, embedder.identity)
    told = library(None, makings, embedder.identity, mirrored=True)
    with _servers() as urls:
        rounds = asyncio.run(_rounds(_Sides([one.text for one in asked], embedder, own, told, urls)))
    conditions = lab.conditions(
        questions=len(asked),
        passages=own.status(None)["passages"],
        rounds=len(rounds),
        server="qdrant-client's local mode behind HTTP, no real Qdrant; at_once: its answers are ready",
        steal_percent=lab.steal.since_last(),
    )
    for name in (*SIDES, *HITS):
        yield _told(name, rounds, conditions)
    yield _replayed([one.text for one in trec()], embedder, own, conditions)
    own.close()
    told.close()


class AtOnce(StandIn):
    """Has the answers of searches ready from the second time on."""

    def __init__(self) -> None:
        self._ready: dict[str, tuple[int, Any]] = {}
        super().__init__()

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if not path.endswith("/points/query"):
            return super().answer(method, path, body)
        key = json.dumps(body)
        if key not in self._ready:
            self._ready[key] = super().answer(method, path, body)
        return self._ready[key]


def _serve(ours: Connection) -> None:
    servers = [StandIn(), AtOnce()]
    ours.send([server.url for server in servers])
    ours.recv()  # or its end: nobody asks any more


@contextmanager
def _servers() -> Iterator[list[str]]:
    """Both, in a process of their own: they would share our interpreter's lock."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.send(None)
        process.join(10)


class _Sides:
    """What each side does for a question."""

    def __init__(self, texts: Sequence[str], embedder: Embedder, own: Library, told: Library, urls: Sequence[str]):
        """own: compares vectors itself; told: has Qdrant do it."""
        self.texts, self._embedder, self._own, self._told = texts, embedder, own, told
        self._clients = {side: Qdrant(url, KEY, "bench") for side, url in zip(SIDES[1:], urls, strict=True)}
        self._recalled: list[Recalled] = []

    async def open(self) -> None:
        """Every server has all points, and every session its questions."""
        clients = list(self._clients.values())
        await _fill(self._told, clients, self._embedder.spec.size)
        for number in range(len(self.texts)):
            found = await self.ask("qdrant", number)
            assert found
            self._recalled.append(_before(self.texts, number, self._embedder, self._told, found))

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def ask(self, name: str, number: int) -> list[Found] | None:
        """What a question finds; None where the session has asked nothing like it."""
        text, identity = self.texts[number], self._embedder.identity
        if name in SIDES:
            query, vector = Query(text=text), self._embedder.vectors([text])[0]
            if name not in self._clients:
                return self._own.search(query, vector, identity)
            near = await self._clients[name].nearest(query, vector, identity, DEPTH)
            return self._told.search(query, vector, identity, told=near)
        recalled = self._recalled[number]
        if name == "exact":
            query = Query(text=text)
            entry = exact(recalled, query, identity, 1)
        else:
            query = Query(text=FRAMES[number % len(FRAMES)].format(text))
            entry = exact(recalled, query, identity, 1) or alike(recalled, query, identity, 1)
        return None if entry is None else self._told.again(query, entry.hits, None, entry.version)


async def _rounds(sides: _Sides) -> list[dict[str, list[float]]]:
    """Seconds of each question, by side and round; all sides of a question follow each other, in an order that moves
    on."""
    await sides.open()
    rounds, names = list[dict[str, list[float]]](), (*SIDES, *HITS)
    for turn in range(1 + ROUNDS):
        times: dict[str, list[float]] = {name: [] for name in names}
        for number, text in enumerate(sides.texts):
            first = (number + turn) % len(names)
            for name in (*names[first:], *names[:first]):
                began = time.perf_counter()
                found = await sides.ask(name, number)
                spent = time.perf_counter() - began
                assert found or name == "alike", f"{name} has found nothing for {text!r}"
                if found:
                    times[name].append(spent)
        rounds.append(times)
    await sides.close()
    return rounds[1:]


async def _fill(told: Library, clients: Sequence[Qdrant], size: int) -> None:
    """Every server has all points."""
    assert told.outbox is not None
    for client in clients:
        await client.open(size)
    while (due := told.outbox.due([0], size, SPOOLED)).turns:
        for client in clients:
            await client.put(due.puts)
        told.outbox.done(due)


def _before(texts: Sequence[str], number: int, embedder: Embedder, told: Library, found: Sequence[Found]) -> Recalled:
    """What a session remembers that has asked this question, and others before it."""
    recalled, vector = Recalled(), np.ones(embedder.spec.size, np.float32) / embedder.spec.size**0.5
    for text in (*texts[max(0, number - BEFORE) : number], texts[number]):
        fresh = entry_of(Query(text=text), vector, embedder.identity, found, told.version, 0)
        recalled = remembered(recalled, fresh)
    return recalled


def _told(name: str, rounds: Sequence[dict[str, list[float]]], conditions: dict[str, Any]) -> Result:
    """One side over all rounds; of a hit also against each search, with the round in which it is least."""
    all_of_them = [one for times in rounds for one in times[name]]
    rate, parts = _rate(all_of_them), {"p95_ms": 1e3 * _p95(all_of_them)}
    if name in SIDES:
        return Result(f"qdrant.{name}", rate, "questions/s", conditions, parts)
    for side in SIDES:
        gains = [_rate(times[name]) / _rate(times[side]) for times in rounds]
        shares = [_p95(times[name]) / _p95(times[side]) for times in rounds]
        parts |= {f"times_{side}": statistics.median(gains), f"least_times_{side}": min(gains)}
        parts |= {f"p95_of_{side}": statistics.median(shares), f"most_p95_of_{side}": max(shares)}
    parts["share_of_variants"] = len(rounds[0][name]) / len(rounds[0][SIDES[0]])
    goal = ">= 3.2 times, a quarter of the p95"
    return Result(f"qdrant.{name}", rate, "questions/s", conditions, parts, goal)


def _replayed(texts: Sequence[str], embedder: Embedder, own: Library, conditions: dict[str, Any]) -> Result:
    """One session asks TREC's questions, each once, in the order of their file, a second apart."""
    vectors = np.concatenate([embedder.vectors(texts[at : at + 64]) for at in range(0, len(texts), 64)])
    found = own.search(Query(text=texts[0]), vectors[0], embedder.identity)
    hits, recalled = {"exact": 0, "alike": 0, "similar": 0}, Recalled()
    for second, (text, vector) in enumerate(zip(texts, vectors, strict=True)):
        query, now = Query(text=text), 1000 * second
        if exact(recalled, query, embedder.identity, now) is not None:
            hits["exact"] += 1
        elif alike(recalled, query, embedder.identity, now) is not None:
            hits["alike"] += 1
        elif similar(recalled, query, vector, embedder.identity, now) is not None:
            hits["similar"] += 1
        else:
            recalled = remembered(recalled, entry_of(query, vector, embedder.identity, found, own.version, now))
    ever = _ever(vectors)
    parts = {name: count / len(texts) for name, count in hits.items()} | {"near_to_any_before": ever}
    return Result("qdrant.replayed", sum(hits.values()) / len(texts), "1", conditions | {"asked": len(texts)}, parts)


def _ever(vectors: Vector) -> float:
    """Share of the questions that are nearer than .90 to any before them: what a cache of all sessions would see."""
    near = [bool((vectors[:at] @ vectors[at]).max() >= 0.9) for at in range(1, len(vectors))]
    return sum(near) / len(vectors)


def _rate(seconds: Sequence[float]) -> float:
    return len(seconds) / sum(seconds)


def _p95(seconds: Sequence[float]) -> float:
    return float(np.percentile(seconds, 95))
