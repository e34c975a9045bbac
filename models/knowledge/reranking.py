"""The slot of a reranker behind the fused rankings: within its time, or without it, and then it says why."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from core.errors import RerankError
from models.knowledge.passage import path_of
from models.knowledge.query import Found
from models.live import LiveModels

log = logging.getLogger(__name__)

CANDIDATES: Final = 10
"""Passages that it sees, the best of the fusion: each costs a run of the model over question and passage. Twice as many
take a six-layer MiniLM .87 s of a processor, and so often longer than anybody waits."""
PATIENCE_S: Final = 1.0
"""That a question waits for it; docs/knowledge.md has what it takes."""
REST_S: Final = 2.0
"""In which nobody waits for one that was too slow."""
OUTCOMES: Final = ("reranked", "late", "failed", "away")
"""Of questions where a reranker is set: how each came out."""


class Ranked(NamedTuple):
    """Passages, the best first."""

    found: list[Found]
    reranker: str = ""
    """Identity of the version that has ordered them; empty: the fusion has."""
    unranked: str | None = None
    """Why the reranker that is set hasn't."""


class Reranking:
    """A worker's. Belongs to one event loop."""

    def __init__(self, models: LiveModels, name: str | None, patience_s: float = PATIENCE_S) -> None:
        """name: the reranker's model; None: there is none, and the fusion's order stands."""
        self.name = name
        self.counts: Counter[str] = Counter()
        """Of questions, by OUTCOMES."""
        self.error: str | None = None
        """Why the last question wasn't reranked. Logged when it changes."""
        self._models = models
        self._patience_s = patience_s
        self._rests_until = 0.0

    @property
    def identity(self) -> str:
        """Of the version that ranks now; empty where there is none."""
        with self._models.reranking(self.name) as reranker:
            return "" if reranker is None else reranker.identity

    def wanted(self, count: int) -> int:
        """How many passages are to be found, so that it has some to choose from."""
        return max(count, CANDIDATES) if self.identity else count

    async def ranked(self, question: str, found: Sequence[Found], count: int) -> Ranked:
        """The best `count` of the passages. found: as the fusion has ordered them; the first CANDIDATES are judged, the
        others stay behind them. Whatever goes wrong with the reranker costs its order, and nothing else."""
        fused = list(found[:count])
        if self.name is None:
            return Ranked(fused)
        with self._models.reranking(self.name) as reranker:
            if reranker is None:
                return self._left(fused, "away", f"no reranker {self.name} is live on this worker")
            if not found:
                return Ranked(fused, reranker.identity)
            late = f"{reranker.manifest.identity} took longer than {self._patience_s:g} s"
            if time.monotonic() < self._rests_until:
                return self._left(fused, "late", late)
            judged = found[:CANDIDATES]
            try:
                async with asyncio.timeout(self._patience_s):
                    scores = await reranker.scores(question, [shown(one) for one in judged])
            except TimeoutError:
                self._rests_until = time.monotonic() + REST_S
                return self._left(fused, "late", late)
            except RerankError as error:
                return self._left(fused, "failed", str(error))
            except Exception as error:  # ONNX Runtime's own
                return self._left(fused, "failed", f"{reranker.manifest.identity} failed: {error!r}")
            self.counts["reranked"] += 1
            self.error = None
            best = np.argsort(-scores, kind="stable")
            ordered = [msgspec.structs.replace(judged[row], rerank=float(scores[row])) for row in best]
            return Ranked([*ordered, *found[CANDIDATES:]][:count], reranker.identity)

    def status(self) -> dict[str, Any] | None:
        """For people; None where no reranker is set."""
        if self.name is None:
            return None
        with self._models.reranking(self.name) as reranker:
            live = None if reranker is None else reranker.manifest.identity
        return {"model": live, "error": self.error, **{outcome: self.counts[outcome] for outcome in OUTCOMES}}

    def _left(self, fused: list[Found], outcome: str, why: str) -> Ranked:
        self.counts[outcome] += 1
        if why != self.error:
            log.warning("Passages stay in the order of the fusion: %s", why)
        self.error = why
        return Ranked(fused, unranked=why)


def shown(one: Found) -> str:
    """A passage as its vector is made of: alone it doesn't say what it is about."""
    return f"{path_of(one.title, one.headings)}\n{one.text}".strip()
