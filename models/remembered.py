"""What is kept of an event that was answered, until nothing can be said of it any more: answers, and what was told."""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from core.errors import FeedbackError
from models.feedback import CORRECTION, LABEL
from models.manifest import Kind, Manifest

MOST_SCORES: Final = 32
"""Probabilities that are kept of an answer: of a version with more labels the largest. The others count as equal shares
of what is left."""

Truth = int | float
"""A label by its place in the manifest; of a regressor the true value."""


class Asked(msgspec.Struct, array_like=True, frozen=True):
    """What has to be known of a version in its role, for judging its answers long after it has gone."""

    model: str
    version: str
    role: str
    labels: tuple[str, ...]
    """None of regressors."""
    horizon: int
    """ms of event time."""
    signals: dict[str, tuple[str, float | None]]
    """Type -> label, and the least score that means it."""

    @classmethod
    def of(cls, manifest: Manifest, role: str) -> Asked:
        """Of a version whose manifest awaits feedback."""
        awaited = manifest.feedback
        assert awaited is not None
        labels = manifest.labels if manifest.kind is Kind.CLASSIFIER else ()
        signals = {name: (one.label, one.min_score) for name, one in awaited.signals.items()}
        return cls(manifest.name, manifest.version, role, labels, math.ceil(1e3 * awaited.horizon), signals)

    @property
    def identity(self) -> str:
        """NAME@VERSION."""
        return f"{self.model}@{self.version}"

    @property
    def reference(self) -> str:
        """What answers name it by: so short that millions of them may."""
        return blake2b(msgspec.json.encode(self), digest_size=6).hexdigest()

    def meaning(self, told: Told) -> Truth | None:
        """What feedback says that the answer should have been; None: nothing. Raises FeedbackError for what the version
        can't have answered."""
        if told.type not in (LABEL, CORRECTION):
            label, least = self.signals.get(told.type, (None, None))
            if label is None or (least is not None and not (told.score is not None and told.score >= least)):
                return None
            return self.labels.index(label)
        if not self.labels:
            if told.score is None:
                raise FeedbackError(f"{self.identity} answers with a value: send the true one as score")
            return told.score
        if told.label not in self.labels:
            raise FeedbackError(
                f"{self.identity} has no label {_short(repr(told.label))}; it has {_short(', '.join(self.labels), 500)}"
            )
        return self.labels.index(told.label)


class Answer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What one version said of an event."""

    asked: str
    """Asked.reference."""
    ts: int
    """Event time, ms since epoch."""
    partition: int
    offset: int
    """Where the observation stands."""
    scores: bytes
    """float32, little-endian: a probability a label, or the value."""
    places: bytes = b""
    """uint16: whose they are, by the places of the labels, best first; empty: all labels', in order."""

    def matrix(self, labels: int) -> NDArray[np.float32]:
        """(labels,), or the value alone (1,)."""
        kept = np.frombuffer(self.scores, "<f4")
        if not self.places:
            return kept
        share = max(0.0, 1.0 - float(kept.sum())) / (labels - len(kept))
        scores = np.full(labels, share, np.float32)
        scores[np.frombuffer(self.places, "<u2")] = kept
        return scores


class Told(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Feedback, as it is kept with its event."""

    type: str
    id: str
    ts: int
    offset: int
    """Where it stands, in the partition's feedback."""
    label: str | None = None
    score: float | None = None
    model: str | None = None

    @property
    def says(self) -> bool:
        """Whether it says a label itself."""
        return self.type in (LABEL, CORRECTION)

    @property
    def rank(self) -> tuple[int, int, str]:
        """Of two that mean something, the larger holds."""
        return (LABEL, CORRECTION).index(self.type) + 1 if self.says else 0, self.ts, self.id


class Remembered(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One event. `due` comes first, so that it can be read without the rest."""

    due: int
    """Event time after which nothing can be said of it any more, ms since epoch."""
    answers: tuple[Answer, ...] = ()
    """One a model: the first."""
    told: tuple[Told, ...] = ()


def packed(matrix: NDArray[np.float32]) -> list[tuple[bytes, bytes]]:
    """Answer.scores and Answer.places of each row. matrix: (n, labels), or a regressor's values (n, 1)."""
    n, labels = matrix.shape
    if labels <= MOST_SCORES:
        raw, width = matrix.astype("<f4", copy=False).tobytes(), 4 * labels
        return [(raw[at : at + width], b"") for at in range(0, n * width, width)]
    places = np.argpartition(matrix, -MOST_SCORES, axis=1)[:, -MOST_SCORES:]
    places.sort(axis=1)  # of equal probabilities the first label's comes first, as everywhere
    by = np.argsort(-np.take_along_axis(matrix, places, 1), axis=1, kind="stable")
    places = np.take_along_axis(places, by, 1)
    kept = np.take_along_axis(matrix, places, 1)
    rows = zip(kept.astype("<f4"), places.astype("<u2"), strict=True)
    return [(row.tobytes(), whose.tobytes()) for row, whose in rows]


def _short(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
