"""Records later than the allowed lateness: as they came, with how late they are, for people and for repair jobs."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from core.topics import LATE
from engine.batch import Slice, Staged
from engine.dead_letters import as_it_came
from engine.record import Record
from engine.tracing import output_headers


def late_record(s: Slice[Any], record: Record, ts: int, watermark: int) -> Staged:
    """The copy of a late record on `late`.

    Headers: source, traceparent, event-time and watermark (ISO, UTC), late-ms (how far before the watermark it is),
    time (ISO, UTC).
    """
    headers: list[tuple[str, bytes]] = [
        *output_headers(s.topic, s.partition, [record], s.parents)[0],
        ("event-time", iso(ts).encode()),
        ("watermark", iso(watermark).encode()),
        ("late-ms", b"%d" % (watermark - ts)),
        ("time", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()).encode()),
    ]
    return as_it_came(s, record, LATE, headers)


def outlived_record(s: Slice[Any], record: Record, ts: int, end: int) -> Staged:
    """The copy on `late` of a record that came after the end of what it is about, whatever the watermark.

    Headers: source, traceparent, event-time and until (ISO, UTC), late-ms (how far after `until` it is), time.
    """
    headers: list[tuple[str, bytes]] = [
        *output_headers(s.topic, s.partition, [record], s.parents)[0],
        ("event-time", iso(ts).encode()),
        ("until", iso(end).encode()),
        ("late-ms", b"%d" % (ts - end)),
        ("time", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()).encode()),
    ]
    return as_it_came(s, record, LATE, headers)


def iso(ms: int) -> str:
    """A time for people."""
    minute, rest = divmod(ms, 60_000)
    return f"{_minute(minute)}:{rest // 1000:02}.{rest % 1000:03}Z"


@lru_cache(1024)  # most times that are shown together are near each other
def _minute(minute: int) -> str:
    return datetime.fromtimestamp(60 * minute, UTC).isoformat(timespec="minutes")[: -len("+00:00")]
