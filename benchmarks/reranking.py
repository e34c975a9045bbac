"""What a reranker gains: passages of the right section among the best, with it and without, and its cost."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.lab import Lab
from benchmarks.registry import Result, benchmark
from benchmarks.retrieval import Judged, Places, judged, library, made, places, without_headings
from examples.knowledge.documentation import Question, documents, questions
from examples.knowledge.minilm import minilm
from models.device import Device
from models.embedder import Embedder
from models.folder import ModelFolder
from models.inference import InferenceThread
from models.knowledge.library import Library
from models.knowledge.query import Query
from models.knowledge.reranking import CANDIDATES, shown
from models.manifest import Manifest
from models.reranker import Reranker

FOLDER: Final = "RERANKER"
"""Variable that names a version's folder: no package that is known here carries one."""
SEES: Final = (5, CANDIDATES, 2 * CANDIDATES)
"""Candidates that it is let order."""


@benchmark
def reranking(lab: Lab) -> Iterator[Result]:
    """nDCG@10, recall@10 and CPU of the reranker in RERANKER=FOLDER, on the questions of the benchmark `retrieval`."""
    if FOLDER not in os.environ:
        conditions = lab.conditions(why=f"{FOLDER} names no folder of a version")
        yield Result("reranking.ndcg10", None, "1", conditions)
        return
    path = Path(os.environ[FOLDER])
    manifest = Manifest.read(path / "manifest.json", path.name)
    thread = InferenceThread()
    reranker = Reranker(ModelFolder.open(path, manifest.name, manifest.version), Device.of("cpu"), thread)
    embedder = Embedder(minilm(), Device.of("cpu"), thread)
    makings = {one.id: made(one, embedder) for one in documents()}
    asked = list(questions({name: making.passages for name, making in makings.items()}))
    for hidden in (True, False):
        ours: dict[str, Any] = (
            {name: without_headings(one, embedder) for name, one in makings.items()} if hidden else dict(makings)
        )
        shelf = library(None, ours, embedder.identity)
        yield from _compared(lab, shelf, asked, places(makings), embedder, reranker, hidden=hidden)
        shelf.close()


def _compared(
    lab: Lab,
    shelf: Library,
    asked: Sequence[Question],
    where: Places,
    embedder: Embedder,
    reranker: Reranker,
    *,
    hidden: bool,
) -> Iterator[Result]:
    figures: dict[int, list[Judged]] = {sees: [] for sees in (0, *SEES)}
    searched, reranked = list[float](), list[float]()
    for question in asked:
        began = time.thread_time()
        vector = embedder.vectors([question.text])[0]
        found = shelf.search(Query(text=question.text, count=max(SEES)), vector, embedder.identity)
        searched.append(time.thread_time() - began)
        began = time.thread_time()
        scores = reranker.pairs([(question.text, shown(one)) for one in found[:CANDIDATES]])
        reranked.append(time.thread_time() - began)
        rest = reranker.pairs([(question.text, shown(one)) for one in found[CANDIDATES:]])
        scores = np.concatenate([scores, rest])
        for sees, some in figures.items():
            best = np.argsort(-scores[:sees], kind="stable")
            some.append(judged(question, [*(found[row] for row in best), *found[sees:]], where))
    for sees, some in figures.items():
        gained = [with_.gain - without.gain for with_, without in zip(some, figures[0], strict=True)]
        parts = {
            "recall10": statistics.fmean(one.share for one in some),
            "one_of_five": statistics.fmean(one.first for one in some),
            "gained": statistics.fmean(gained),
            "gained_standard_error": statistics.stdev(gained) / len(gained) ** 0.5,
            "search_cpu_ms": 1e3 * statistics.median(searched),
        }
        if sees == CANDIDATES:
            parts["rerank_cpu_ms"] = 1e3 * statistics.median(reranked)
            parts["rerank_cpu_ms_p95"] = 1e3 * float(np.percentile(reranked, 95))
        conditions = lab.conditions(
            candidates=sees,
            reranker=reranker.manifest.identity if sees else None,
            headings_in_passages=not hidden,
            questions=len(asked),
        )
        yield Result("reranking.ndcg10", statistics.fmean(one.gain for one in some), "1", conditions, parts)
