"""Whether the worker knows that it doesn't know: questions that Faust's documentation answers, and some that it
doesn't."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from agents.grounding import PASSAGES
from benchmarks.lab import Lab
from benchmarks.registry import Result, benchmark
from benchmarks.retrieval import library, made
from core.settings import RELEVANCE
from examples.knowledge.asked import ANSWERED, UNANSWERED
from examples.knowledge.documentation import documents
from examples.knowledge.documentation import questions as headings
from examples.knowledge.minilm import minilm
from examples.knowledge.trec import questions as trec
from models.device import Device
from models.embedder import Embedder
from models.inference import InferenceThread
from models.knowledge.library import Library
from models.knowledge.query import Found, Query
from models.knowledge.relevance import relevance

THRESHOLDS: Final = (0.5, 0.55, RELEVANCE, 0.65, 0.7, 0.8)
SAMPLE: Final = 1000
"""Of TREC's questions."""


@benchmark
def grounding(lab: Lab) -> Iterator[Result]:
    """Two error rates for each threshold: questions that are answered in the documentation and refused, and questions
    that aren't and get passages all the same. By hand, from headings, and from TREC."""
    embedder = Embedder(minilm(), Device.of("cpu"), InferenceThread())
    makings = {one.id: made(one, embedder) for one in documents()}
    shelf = library(None, makings, embedder.identity)
    asked = trec()
    dice = np.random.default_rng(0)
    sets = {
        "answered": list(ANSWERED),
        "headings": [one.text for one in headings({name: making.passages for name, making in makings.items()})],
        "same_trade": list(UNANSWERED),
        "trec": [asked[place].text for place in dice.choice(len(asked), SAMPLE, replace=False)],
    }
    began = time.process_time()
    scores = {name: np.array([_relevance(shelf, embedder, text) for text in texts]) for name, texts in sets.items()}
    each = (time.process_time() - began) / sum(map(len, sets.values()))
    for least in THRESHOLDS:
        yield Result(
            "grounding.errors",
            float((scores["answered"] < least).mean()),
            "refused of the answered",
            lab.conditions(
                threshold=least,
                default=least == RELEVANCE,
                questions={name: len(texts) for name, texts in sets.items()},
            ),
            {
                "refused_headings": float((scores["headings"] < least).mean()),
                "answered_same_trade": float((scores["same_trade"] >= least).mean()),
                "answered_trec": float((scores["trec"] >= least).mean()),
                "cpu_ms_each": 1e3 * each,
            },
        )
    shelf.close()


def _relevance(shelf: Library, embedder: Embedder, text: str) -> float:
    query = Query(text=text, count=PASSAGES)
    found: Sequence[Found] = shelf.search(query, embedder.vectors([text])[0], embedder.identity)
    return relevance(query, found)
