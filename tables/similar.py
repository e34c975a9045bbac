"""Scope -> answers that were given in it, and how far each has been right for similar questions. Written by chat where
a user allows for errors (models/knowledge/boundary.py)."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from core.messages import Reply
from engine.table import Shard
from engine.timed import TimedTable
from models.knowledge.boundary import NEAR, Observation
from models.knowledge.record import WIRE
from tables.answers import KEPT_MS, Answer, answers
from tables.reusable import WHOLE

ANSWERS: Final = 16
"""Of a scope: with what is known of each 40 KB at most."""
COMPARISONS: Final = 128
"""The newest of an answer."""
_SEEN: Final = np.dtype([("source", "<u4"), ("similarity", "<f2"), ("right", "u1")])


class Kept(msgspec.Struct, array_like=True):
    """An answer, and what it was compared with."""

    place: str
    """Its key in the table `answers` of the same partition: what is erased there is nowhere else."""
    source: str
    """Where its message stands: another one may have taken the place since."""
    vector: bytes
    """Of its question: (size,) of WIRE."""
    at: int
    """Event time, ms since epoch."""
    seen: bytes = b""
    """Records of _SEEN. The hash of each message's source says whether it was compared before: it may come again."""

    @property
    def observed(self) -> list[Observation]:
        return [Observation(float(one["similarity"]), bool(one["right"])) for one in np.frombuffer(self.seen, _SEEN)]

    def compare(self, source: str, similarity: float, right: bool) -> None:
        """With the real answer to the message that stands there; once, however often that comes."""
        mark = int.from_bytes(blake2b(source.encode("utf-8", "surrogatepass"), digest_size=4).digest(), "little")
        before = np.frombuffer(self.seen, _SEEN)
        fresh = np.array([(mark, similarity, right)], _SEEN)
        self.seen = np.concatenate([before[before["source"] != mark], fresh])[-COMPARISONS:].tobytes()


class Scope(msgspec.Struct, array_like=True):
    """What was answered for the same tenant, in the same context, with the same knowledge and model."""

    kept: list[Kept]
    keep_until: int
    """Event time, ms since epoch."""


class Near(NamedTuple):
    """The answer of the nearest question."""

    answer: Answer
    reply: Reply
    source: str
    similarity: float
    observed: list[Observation]


class Lesson(NamedTuple):
    """What the real answer to a question teaches."""

    scope: str
    vector: NDArray[np.float32]
    """(size,), of length 1: the question's."""
    near: Near | None
    right: bool = False
    """Whether the nearest question's answer was the same."""
    keep: bool = True
    """Whether the answer may be given again at all."""


class SimilarAnswers(TimedTable[str, Scope]):
    """Keys are models.knowledge.reuse.scope_key in hex: sessions of a partition share what they have in common."""

    name = "similar"
    of_sessions = False

    def nearest(self, scope: str, vector: NDArray[np.float32], ts: int) -> Near | None:
        """The answer of the question nearest to a vector of length 1, where that is NEAR enough, and it is kept."""
        held = self.get(scope)
        those = [one for one in held.kept if len(one.vector) == vector.size * WIRE.itemsize] if held else []
        if not those:
            return None
        matrix = np.frombuffer(b"".join(one.vector for one in those), WIRE).astype(np.float32)
        cosines = matrix.reshape(len(those), -1) @ vector
        for place in np.argsort(-cosines, kind="stable"):
            one, similarity = those[place], float(cosines[place])
            if similarity < NEAR:
                return None
            answer = _answer(one)
            if answer is not None and answer.reply is not None and ts - one.at < KEPT_MS:
                return Near(answer, answer.reply, one.source, similarity, one.observed)
        return None

    def learn(self, lesson: Lesson, place: str, source: str, ts: int) -> None:
        """The message that stands there, whose answer is at a place of `answers`, was answered by the model. An answer
        that was the same needs no place of its own: the nearer one stands for both."""
        held = self.get(lesson.scope)
        kept = [one for one in (held.kept if held else []) if one.place != place and _answer(one) is not None]
        for one in kept:
            if lesson.near is not None and one.source == lesson.near.source:
                one.compare(source, lesson.near.similarity, lesson.right)
        if lesson.keep and not lesson.right:
            kept = [*_best(kept, ANSWERS - 1), Kept(place, source, lesson.vector.astype(WIRE).tobytes(), ts)]
        if kept:
            self[lesson.scope] = Scope(kept, ts + KEPT_MS)

    def due(self, value: Scope) -> int:
        return value.keep_until

    def fire(self, key: str, at: int) -> None:
        """Forgets it: nothing was answered there for as long as an answer is kept."""
        del self[key]

    def keys_of(self, session: str, shard: Shard) -> list[bytes]:
        """Those with an answer of the session; all are looked at. What else is in there is learnt anew."""
        begin = answers.place(session, "")
        return [
            key
            for key, raw in shard.walk(b"")
            if any(one.place.startswith(begin) for one in self.decode(raw, key).kept)
        ]

    def describe(self, shard: Shard, raw: bytes) -> Any:
        """For people: without vectors."""
        return [
            {"source": one.source, "at": one.at, "compared": [[round(s, 4), right] for s, right in one.observed]}
            for one in self.decode(raw).kept
        ]


def _answer(one: Kept) -> Answer | None:
    """What was answered, if that is still kept and whole."""
    answer = answers.get(one.place)
    whole = answer is not None and answer.reply is not None and answer.reply.finish in WHOLE
    return answer if answer is not None and answer.source == one.source and whole else None


def _best(kept: Sequence[Kept], count: int) -> list[Kept]:
    """Those that most is known of; of equals the newest."""
    ranked = sorted(kept, key=lambda one: (len(one.seen), one.at), reverse=True)[:count]
    return [one for one in kept if one in ranked]


similar = SimilarAnswers()
