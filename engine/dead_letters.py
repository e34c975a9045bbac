"""Records that can't be processed: their raw bytes, where they came from, and why, for people and for replay."""

from __future__ import annotations

import time
from typing import Any, Final

from core.errors import RecordError
from core.topics import DEAD_LETTERS, TopicSpec
from engine.batch import Slice, Staged
from engine.record import Record
from engine.tracing import output_headers

_MESSAGE: Final = 2000
"""Characters of an error's message that a header keeps."""


def dead_letter(s: Slice[Any], record: Record, error: Exception) -> Staged:
    """The dead letter of one record of a slice.

    Headers: source (topic/partition/offset), traceparent, error (class), message, time (ISO, UTC); `truncated` holds
    the original size when the record is larger than we may write.
    """
    text = str(error) if isinstance(error, RecordError) else f"the agent failed on it: {error!r}"
    headers: list[tuple[str, bytes]] = [
        *output_headers(s.topic, s.partition, [record], s.parents)[0],
        ("error", type(error).__name__.encode()),
        ("message", text[:_MESSAGE].encode("utf-8", "backslashreplace")),
        ("time", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()).encode()),
    ]
    return as_it_came(s, record, DEAD_LETTERS, headers)


def as_it_came(s: Slice[Any], record: Record, topic: TopicSpec[bytes], headers: list[tuple[str, bytes]]) -> Staged:
    """A record's own bytes for another topic; `truncated` holds their number where that is more than we may write."""
    key, value = record.key, record.value
    limit = s.task.engine.settings.max_record
    size = len(key or b"") + len(value or b"")
    if size > limit:
        headers.append(("truncated", b"%d" % size))
        key, value = (key or b"")[: limit // 2] or None, (value or b"")[: limit // 2]
    return Staged(s.task.engine.topic_name(topic), [key], [value], [headers], s.partition)
