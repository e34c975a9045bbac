"""A question similar to an answered one: whether it gets that answer, and what its own would teach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.messages import Citation
from models.knowledge.boundary import Decision, decided
from models.knowledge.canonical import canonical
from models.knowledge.knowledge import Knowledge
from tables.similar import Lesson, Near, similar


class Likeness(NamedTuple):
    """What was decided for a message."""

    scope: str
    vector: NDArray[np.float32]
    near: Near | None = None
    """The answer that it may get; None where no question is similar."""
    decision: Decision = Decision(False, False)

    @property
    def given(self) -> Near | None:
        """The answer that it gets."""
        return self.near if self.decision.reuse else None


class Likenesses:
    """Those of a worker's messages, within a user's bound."""

    def __init__(self, knowledge: Knowledge, error: float) -> None:
        """error: share of similar questions that may get a wrong answer, within (0, 1)."""
        self._counts = knowledge.likenesses
        self._error = error

    def of(self, scope: str, vector: NDArray[np.float32], ts: int, source: str) -> Likeness:
        """source: where the message stands, which draws the lots; ts: its event time, ms."""
        near = similar.nearest(scope, vector, ts)
        if near is None:
            return Likeness(scope, vector)
        return Likeness(scope, vector, near, decided(near.observed, near.similarity, self._error, source))

    def given(self) -> None:
        """A message got another one's answer."""
        self._counts["hit"] += 1

    def lesson(self, likeness: Likeness, scope: str, text: str, citations: Sequence[Citation], *, keep: bool) -> Lesson:
        """A message got its own answer. scope: in which it was made in the end; in another one than was decided in
        there is nothing to compare. keep: whether it may be given again."""
        near = likeness.near if scope == likeness.scope else None
        if near is None:
            return Lesson(scope, likeness.vector, None, keep=keep)
        right = canonical(text) == canonical(near.reply.text) and _named(citations) == _named(near.reply.citations)
        self._counts["compared"] += 1
        self._counts["right"] += right
        self._counts["would_hit"] += likeness.decision.would
        self._counts["wrong"] += likeness.decision.would and not right
        return Lesson(scope, likeness.vector, near, right, keep)


def _named(citations: Sequence[Citation]) -> set[str]:
    return {one.passage for one in citations if one.cited}
