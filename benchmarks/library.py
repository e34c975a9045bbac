"""What a library of 100,000 passages takes, and what is left of it after a restart, a death and a new beginning."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.freshness import COMMON, words
from benchmarks.lab import Lab
from benchmarks.registry import Result, benchmark
from models.knowledge.library import FILE, Library, Record
from models.knowledge.passage import Passage
from models.knowledge.query import Query
from models.knowledge.record import WIRE, Announced, Content, Key, encode

PASSAGES: Final = 100_000
SIZE: Final = 384
CLUSTERS: Final = 500
QUESTIONS: Final = 200
STEP: Final = 500
DIES_S: Final = 60.0

Question = tuple[Query, Any]


@benchmark
def library(lab: Lab) -> Iterator[Result]:
    """100,000 passages in one library: memory, questions, restart; whether one that was killed while it grew, and one
    that was damaged and begun anew, answer the same."""
    folder = lab.folder / "library"
    before = _rss_mb()
    library, began = Library(folder), time.perf_counter()
    for records in _all():
        library.apply(records)
    filled = time.perf_counter() - began
    questions = _questions()
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
    answers = [found for _, _, found in told]
    same = _answers(again, questions) == answers
    killed, at = _killed(lab.folder / "killed")
    after_death = _answers(killed, questions) == answers
    killed.close()
    anew, reason = _begun_anew(lab.folder / "killed")
    after_damage = _answers(anew, questions) == answers
    anew.close()
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
        equal_after_restart=same,
        killed_at=at,
        equal_after_kill=after_death,
        damaged=reason,
        equal_after_rebuild=after_damage,
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


def _all() -> Iterator[list[Record]]:
    """The same each time."""
    dice, draw = random.Random(5), np.random.default_rng(5)
    centres = _centres()
    for first in range(0, PASSAGES, STEP):
        yield list(_records(first, dice, draw, centres))


def _centres() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(6).standard_normal((CLUSTERS, SIZE)).astype(np.float32)


def _questions() -> list[Question]:
    dice, draw, centres = random.Random(7), np.random.default_rng(7), _centres()
    return [
        (Query(text=words(dice, 8, COMMON)), _unit(centres[n % CLUSTERS] + draw.standard_normal(SIZE)))
        for n in range(QUESTIONS)
    ]


def _killed(folder: Path) -> tuple[Library, int]:
    """One whose process is killed (-9) while it applies, opened again and given the rest; and the offset at which."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_fill, args=(folder, there), daemon=True)
    process.start()
    there.close()
    while here.recv() < PASSAGES // 2:
        pass
    process.kill()
    process.join(DIES_S)
    library = Library(folder)
    assert library.rebuilt is None, library.rebuilt
    at = library.positions[0]
    _complete(library)
    return library, at


def _fill(folder: Path, report: Connection) -> None:
    library = Library(folder)
    for number, records in enumerate(_all()):
        report.send(number * STEP)
        library.apply(records)
        library.index(STEP // 5)


def _begun_anew(folder: Path) -> tuple[Library, str | None]:
    """One whose file was damaged, given all once more; and what it says was wrong."""
    with (folder / FILE).open("r+b") as file:
        for at in range(0, 1 << 20, 4096):
            file.seek(at)
            file.write(bytes(512))
    library = Library(folder)
    reason = library.rebuilt
    _complete(library)
    return library, reason


def _complete(library: Library) -> None:
    """Gives it what it hasn't, and makes its graph."""
    begin = library.positions.get(0, 0)
    for records in _all():
        if left := [record for record in records if record.offset >= begin]:
            library.apply(left)
    while library.index(100):
        pass


def _answers(library: Library, questions: list[Question]) -> list[list[str]]:
    return [_timed(library, *question)[2] for question in questions]


def _records(
    first: int, dice: random.Random, draw: np.random.Generator, centres: np.ndarray[Any, np.dtype[np.float32]]
) -> Iterator[Record]:
    for number in range(first, first + STEP, 5):
        name = f"d{number}"
        passages = [Passage((), words(dice, 60), 0, 1) for _ in range(5)]
        vectors = centres[draw.integers(0, CLUSTERS, 5)] + 0.8 * draw.standard_normal((5, SIZE))
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
