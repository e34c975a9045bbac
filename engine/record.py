"""What the engine needs of a consumed record: aiokafka's own compiled record has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

Headers = Sequence[tuple[str, bytes | None]]


class Record(Protocol):
    """A record as aiokafka decodes it from a batch: no copy, no dataclass."""

    @property
    def offset(self) -> int:
        """Offset in its partition."""

    @property
    def timestamp(self) -> int:
        """ms since epoch, by the producer or the broker."""

    @property
    def key(self) -> bytes | None:
        """The raw key."""

    @property
    def value(self) -> bytes | None:
        """The raw value; None is a tombstone."""

    @property
    def headers(self) -> Headers:
        """Name and raw value, in order."""


class Batch(Protocol):
    """Records that were written in one piece, decoded as they are read out of it; once."""

    @property
    def next_offset(self) -> int:
        """Offset behind the last record that was written, even if compaction took it away."""

    def __iter__(self) -> Iterator[Record]:
        """Its records, in order."""
