"""Chooses what a model is told of a session: the session's window, with what it needs beside the turns."""

from __future__ import annotations

import logging
from typing import Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from agents.prompts import Chosen, Draft
from agents.summaries import Summarizer, folded
from core.errors import SummaryError
from core.settings import Settings
from models.embedder.embedder import Embedder
from models.live import LiveModels
from models.windows.fixed import fixed
from models.windows.recent import recent
from models.windows.semantic import held, semantic
from models.windows.sinks import sinks
from models.windows.summary import fold
from models.windows.turn import tokens
from tables.contexts import Turn

log = logging.getLogger(__name__)

SIMPLE: Final = {"recent": recent, "fixed": fixed, "sinks": sinks}
"""Those that know by the counts alone."""
READ: Final = 2_000
"""Characters of a turn, and of a message, that its vector is made of; embedders cut what is longer than some hundred
tokens."""
PLACES: Final = 4
"""Decimals of a likeness: what is nearer than that to another is as like."""


class Windows:
    """Those of a worker's sessions."""

    def __init__(self, models: LiveModels, settings: Settings) -> None:
        self._models, self._embedder = models, settings.embedder

    async def choose(self, draft: Draft, summarizer: Summarizer) -> tuple[Draft, Chosen]:
        """The draft, whose context may have been folded meanwhile, and what is taken of it. A window that can't do its
        work gives way to `recent`, and says why."""
        turns = draft.context.turns
        if simple := SIMPLE.get(draft.window):
            kept = simple(turns, draft.room)
            return draft, Chosen(kept, kept, draft.window)
        if tokens(turns) <= draft.room:
            return draft, Chosen(turns, turns, draft.window)
        if draft.window == "semantic":
            return await self._semantic(draft)
        return await self._summary(draft, summarizer)

    async def _semantic(self, draft: Draft) -> tuple[Draft, Chosen]:
        with self._models.embedding(self._embedder) as embedder:
            if embedder is None:
                return draft, _instead(draft, "no embedder is live on this worker")
            try:
                draft, likeness = await _likeness(draft, embedder)
            except Exception as error:  # ONNX Runtime's own, for a text that nobody has thought of
                log.warning("A window can't be chosen by meaning: %r", error)
                return draft, _instead(draft, f"the embedder failed: {error}")
        turns = draft.context.turns
        return draft, Chosen(semantic(turns, draft.room, likeness), held(turns, draft.room), "semantic")

    async def _summary(self, draft: Draft, summarizer: Summarizer) -> tuple[Draft, Chosen]:
        parts = fold(draft.context.turns, draft.room)
        assert parts is not None, "not all turns fit"
        try:
            draft = folded(draft, parts, await summarizer.summary(draft, parts.old))
        except SummaryError as error:
            log.warning("Turns are dropped without a summary: %s", error)
            return draft, _instead(draft, f"no summary: {error}")
        summarizer.keep(draft)
        turns = draft.context.turns
        return draft, Chosen(turns, turns, "summary")


def _instead(draft: Draft, why: str) -> Chosen:
    """What `recent` chooses. A session whose window is `semantic` holds the rest for when there is an embedder."""
    turns, room = draft.context.turns, draft.room
    kept = recent(turns, room)
    return Chosen(kept, held(turns, room) if draft.window == "semantic" else kept, "recent", why)


async def _likeness(draft: Draft, embedder: Embedder) -> tuple[Draft, list[float]]:
    """The draft with a vector for each turn, and how much each is like the message: the cosine, where vectors have
    length 1. A vector is computed once and kept with its turn."""
    context = draft.context
    known = context.embedder == embedder.identity
    fresh = [turn for turn in context.turns if not (known and turn.vector)]
    vectors = await embedder.passages([_text(turn) for turn in fresh], aside=False)
    made = {id(turn): _packed(vector) for turn, vector in zip(fresh, vectors, strict=True)}
    turns = [replace(turn, vector=made.get(id(turn), turn.vector)) for turn in context.turns]
    asked = await embedder.question(draft.message.text[:READ])
    matrix = np.stack([np.frombuffer(turn.vector, "<f2") for turn in turns]).astype(np.float32)
    likeness = np.nan_to_num(matrix @ asked, nan=-1.0).round(PLACES).tolist()
    return draft._replace(context=replace(context, turns=turns, embedder=embedder.identity)), likeness


def _text(turn: Turn) -> str:
    return "\n".join(one.text for one in turn.said)[:READ]


def _packed(vector: NDArray[np.float32]) -> bytes:
    return vector.astype("<f2").tobytes()
