"""W3C trace context: every output says which input it came from and which trace it belongs to."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from engine.record import Headers, Record

_TRACEPARENT = re.compile(rb"00-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACE_ID = re.compile(rb"[0-9a-f]{32}")


def output_headers(topic: str, partition: int, records: Sequence[Record]) -> list[list[tuple[str, bytes]]]:
    """Headers of the outputs of records of one partition: `source` and `traceparent`, one list a record.

    The trace is the input's (`traceparent`, or a plain `trace-id` of 32 hex digits), else a new one.
    """
    fresh = os.urandom(24 * len(records)).hex().encode()
    prefix = f"{topic}/{partition}/".encode()
    headers = []
    at = 0
    for record in records:
        span = at + 32
        trace = (_trace_of(record.headers) if record.headers else None) or fresh[at:span]
        at += 48
        source = b"%b%d" % (prefix, record.offset)
        headers.append([("source", source), ("traceparent", b"00-%b-%b-01" % (trace, fresh[span:at]))])
    return headers


def _trace_of(headers: Headers) -> bytes | None:
    for name, value in headers:
        if not value:
            continue
        if name == "traceparent" and (found := _TRACEPARENT.fullmatch(value)):
            return found[1]
        if name == "trace-id" and _TRACE_ID.fullmatch(value.replace(b"-", b"")):
            return value.replace(b"-", b"")
    return None
