"""In-order completion: work may finish in any order, only the contiguous finished prefix counts."""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar


class Span(Protocol):
    """Records that finish as a whole."""

    @property
    def last(self) -> int:
        """Offset of the last record."""

    @property
    def size(self) -> int:
        """Number of records."""

    @property
    def weight(self) -> int:
        """Bytes of them, about."""

    @property
    def done(self) -> bool:
        """Whether all of it is finished."""


S = TypeVar("S", bound=Span)


class OffsetTracker(Generic[S]):
    """Where one source partition stands. Offsets may have gaps: compaction and transaction markers leave them."""

    __slots__ = ("_spans", "accepted", "position", "unfinished", "weight")

    def __init__(self, position: int) -> None:
        self.position = position
        """Next offset to commit: every record before it is finished."""
        self.accepted = position
        """Next offset to accept: every record before it was handed out."""
        self.unfinished = 0
        """Records handed out and not yet part of the finished prefix."""
        self.weight = 0
        """Their bytes, about."""
        self._spans: deque[S] = deque()

    @property
    def spans(self) -> list[S]:
        """What is unfinished, or waits for something unfinished before it."""
        return list(self._spans)

    def accept(self, span: S) -> None:
        """Notes records that were handed out, in the order of their offsets."""
        self._spans.append(span)
        self.accepted = span.last + 1
        self.unfinished += span.size
        self.weight += span.weight

    def replace(self, span: S, parts: list[S]) -> None:
        """Puts smaller spans in the place of one that was handed out."""
        at = self._spans.index(span)
        del self._spans[at]
        for i, part in enumerate(parts):
            self._spans.insert(at + i, part)

    def advance(self) -> S | None:
        """The next span that has become part of the finished prefix, if there is one; position moves behind it."""
        if not self._spans or not self._spans[0].done:
            return None
        span = self._spans.popleft()
        self.unfinished -= span.size
        self.weight -= span.weight
        self.position = span.last + 1
        return span

    def rewind(self) -> list[S]:
        """Gives up everything unfinished: it will be accepted again from position on. Returns what was dropped."""
        dropped = list(self._spans)
        self._spans.clear()
        self.accepted = self.position
        self.unfinished = self.weight = 0
        return dropped
