"""How soon a document is answered from while many wait, and what a library of 100,000 passages takes."""

from __future__ import annotations

import gc
import math
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
import numpy as np
import urllib3

from benchmarks import sides
from benchmarks.lab import Lab
from benchmarks.load import Publisher
from benchmarks.registry import Result, benchmark
from benchmarks.worker import Worker
from core.events import Document
from core.topics import CONTROL, DOCUMENTS
from examples.knowledge.minilm import NAME, VERSION, minilm
from models.knowledge.library import Library, Record
from models.knowledge.passage import Passage
from models.knowledge.query import Query
from models.knowledge.record import WIRE, Announced, Content, Key, encode

BULK: Final = 10_000
"""Documents of a load."""
FRESH: Final = 60
"""Documents that come while it waits, one every so many seconds:"""
EVERY_S: Final = 1.0
PASSAGES: Final = 100_000
SIZE: Final = 384
QUESTIONS: Final = 200
STEP: Final = 500
START_S: Final = 120.0
LOOK_S: Final = 0.05
WORDS: Final = 30_000
"""Of the synthetic language; the n-th is used 1/n times as often as the first, as in real ones."""
COMMON: Final = 60
"""Words of it that no question has: they would be stop words."""


@benchmark
def freshness(lab: Lab) -> Iterator[Result]:
    """10,000 documents wait, and one more comes each second: until a search finds that one; and 100,000 passages in one
    library: memory, questions, restart."""
    yield from fresh(lab)
    yield from large(lab)


def fresh(lab: Lab) -> Iterator[Result]:
    """From the broker's acknowledgement of the document to the answer that has it, over HTTP."""
    store = lab.folder / "embedders"
    minilm(store)
    with lab.run("freshness") as run, sides.ours(lab, run, MODEL_STORE=str(store), COMMIT_INTERVAL="0.05") as worker:
        control = NAME.encode(), msgspec.json.encode({"active": VERSION})
        Publisher(lab.bootstrap).publish(run.topic(CONTROL.name), [control])
        worker.wait_until(lambda: _status(worker).get("embedder") is not None, START_S, "embedder")
        dice = random.Random(11)
        topic = run.topic(DOCUMENTS.name)
        alone = [_one(lab, worker, topic, f"alone{n}") for n in range(10)]
        Publisher(lab.bootstrap).publish(topic, (_document(f"bulk{n}", _text(dice)) for n in range(BULK)))
        began, before, cpu = time.monotonic(), _status(worker), worker.cpu_s()
        waited = []
        for n in range(FRESH):
            next_at = began + n * EVERY_S
            time.sleep(max(0.0, next_at - time.monotonic()))
            waited.append(_one(lab, worker, topic, f"fresh{n}"))
        seconds, after = time.monotonic() - began, _status(worker)
        conditions = lab.conditions(
            queued=BULK,
            still_pending=after["pending"],
            fresh=FRESH,
            alone_p50_s=round(float(np.median(alone)), 3),
            worker_cpu_s=round(worker.cpu_s() - cpu, 1),
        )
        parts = {"p50": float(np.median(waited)), "max": max(waited)}
        yield Result("freshness.p95", float(np.percentile(waited, 95)), "s", conditions, parts, "<= 2 s")
        made = (after["vectors"] - before["vectors"]) / seconds
        yield Result("freshness.bulk", made, "passages/s", conditions | {"seconds": round(seconds, 1)})


def _one(lab: Lab, worker: Worker, topic: str, name: str) -> float:
    """Seconds until a document is found."""
    mark = f"{name}quux"
    Publisher(lab.bootstrap).publish(topic, [_document(name, f"The {mark} is what only this document tells about.")])
    began = time.monotonic()
    path = f"/knowledge/search?{urlencode({'q': f'what is the {mark}', 'count': 1})}"

    def found() -> bool:
        time.sleep(LOOK_S)  # each look embeds a question
        answer = _get(worker, path)
        return bool(answer.get("found")) and answer["found"][0]["document"] == name

    worker.wait_until(found, START_S, f"document {name}")
    return time.monotonic() - began


def _document(name: str, text: str) -> tuple[bytes, bytes]:
    return name.encode(), msgspec.json.encode(Document(name, text))


def _text(dice: random.Random) -> str:
    return "\n\n".join(_words(dice, 60) + "." for _ in range(2))


def _words(dice: random.Random, count: int, first: int = 1) -> str:
    """Zipf's law: the rank's logarithm is uniform."""
    span = math.log(WORDS / first)
    return " ".join(f"w{int(first * math.exp(span * dice.random()))}x" for _ in range(count))


_pool = urllib3.PoolManager()


def _get(worker: Worker, path: str) -> dict[str, Any]:
    try:
        answer = _pool.request("GET", worker.url + path, timeout=10.0, retries=False)
    except urllib3.exceptions.HTTPError:
        return {}
    told: dict[str, Any] = msgspec.json.decode(answer.data) if answer.status == 200 else {}
    return told


def _status(worker: Worker) -> dict[str, Any]:
    return _get(worker, "/knowledge")


def large(lab: Lab) -> Iterator[Result]:
    """Synthetic passages of about 60 words with vectors in 500 clusters, in this process."""
    folder = lab.folder / "library"
    before = _rss_mb()
    dice, draw = random.Random(5), np.random.default_rng(5)
    centres = draw.standard_normal((500, SIZE)).astype(np.float32)
    library, began = Library(folder), time.perf_counter()
    for first in range(0, PASSAGES, STEP):
        library.apply(list(_records(first, dice, draw, centres)))
    filled = time.perf_counter() - began
    questions = [
        (Query(text=_words(dice, 8, COMMON)), _unit(centres[n % 500] + draw.standard_normal(SIZE)))
        for n in range(QUESTIONS)
    ]
    exact, exact_cpu = _near(library, questions)
    began, cpu = time.perf_counter(), time.process_time()
    while library.index(100):
        pass
    indexed, indexing_cpu = time.perf_counter() - began, time.process_time() - cpu
    near, near_cpu = _near(library, questions)
    recall = float(np.mean([len(a & b) / len(b) for a, b in zip(near, exact, strict=True)]))
    told = [_timed(library, *question) for question in questions]
    memory = round(_rss_mb() - before)
    library.close()
    del library
    gc.collect()
    began = time.perf_counter()
    again = Library(folder)
    restart = time.perf_counter() - began
    assert again.rebuilt is None, again.rebuilt
    same = [_timed(again, *question)[2] for question in questions]
    conditions = lab.conditions(
        passages=PASSAGES,
        components=SIZE,
        questions=QUESTIONS,
        disk_mb=round(sum(file.stat().st_size for file in folder.iterdir()) / 1e6),
        memory_mb=memory,
        applied_per_s=round(PASSAGES / filled),
        indexed_s=round(indexed, 1),
        indexing_cpu_s=round(indexing_cpu, 1),
        recall_of_50=round(recall, 4),
        restart_s=round(restart, 2),
        equal_after_restart=same == [found for _, _, found in told],
        threads=threading.active_count(),
    )
    ms, cpus = [1e3 * seconds for seconds, _, _ in told], [1e3 * seconds for _, seconds, _ in told]
    parts = {
        "p50": float(np.median(ms)),
        "cpu_p50": float(np.median(cpus)),
        "cpu_p95": float(np.percentile(cpus, 95)),
        "meaning_cpu": near_cpu,
        "meaning_cpu_exact": exact_cpu,
        "words_cpu": _words_cpu(again, questions),
    }
    yield Result("library.p95", float(np.percentile(ms, 95)), "ms", conditions, parts)
    again.close()


def _records(
    first: int, dice: random.Random, draw: np.random.Generator, centres: np.ndarray[Any, np.dtype[np.float32]]
) -> Iterator[Record]:
    for number in range(first, first + STEP, 5):
        name = f"d{number}"
        passages = [Passage((), _words(dice, 60), 0, 1) for _ in range(5)]
        vectors = centres[draw.integers(0, 500, 5)] + 0.8 * draw.standard_normal((5, SIZE))
        made = Content(born=0, content="c", embedder="e", passages=passages, vectors=vectors.astype(WIRE).tobytes())
        told = Announced(born=0, revision=0, content="c", size=1, at=0)
        yield Record(0, 2 * number, Key(name).encode(), encode(told))
        yield Record(0, 2 * number + 1, Key(name, 0).encode(), encode(made))


def _timed(library: Library, query: Query, vector: Any) -> tuple[float, float, list[str]]:
    """Seconds, seconds of CPU, passages."""
    began, cpu = time.perf_counter(), time.thread_time()
    found = library.search(query, vector, "e")
    return time.perf_counter() - began, time.thread_time() - cpu, [one.passage for one in found]


def _near(library: Library, questions: list[tuple[Query, Any]]) -> tuple[list[set[int]], float]:
    """By meaning alone, and ms of CPU of the question in the middle."""
    found, times = list[set[int]](), list[float]()
    for query, vector in questions:
        began = time.thread_time()
        near = library.reader.nearest(query, vector, "e")
        times.append(time.thread_time() - began)
        found.append({one.id for one in near})
    return found, 1e3 * float(np.median(times))


def _words_cpu(library: Library, questions: list[tuple[Query, Any]]) -> float:
    """ms of CPU of the question in the middle."""
    times = []
    for query, _ in questions:
        began = time.thread_time()
        library.reader.worded(query)
        times.append(time.thread_time() - began)
    return 1e3 * float(np.median(times))


def _unit(vector: Any) -> Any:
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def _rss_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
