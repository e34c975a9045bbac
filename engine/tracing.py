"""W3C trace context: every output says which input it came from and which trace it belongs to."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, cast

import numpy as np

from engine.record import Headers, Record

_TRACEPARENT: Final = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]([0-9a-f])").fullmatch
_LATER: Final = re.compile(
    rb"(?!00|ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]([0-9a-f])(?:-.*)?", re.DOTALL
).fullmatch
"""Of versions to come, as far as they must stay readable."""
_TRACE_ID: Final = re.compile(rb"[0-9a-f]{32}").fullmatch
_NO_TRACE: Final = 32 * b"0"
_NO_SPAN: Final = 16 * b"0"
_KEPT: Final = frozenset(b"%x" % digit for digit in range(1, 16, 2))
"""Last digits of flags that say that the trace is kept."""
_BLANK: Final = np.frombuffer(b"00-" + 32 * b"0" + b"-" + 16 * b"0" + b"-00", np.uint8)
_SPAN: Final = slice(35, 53)
"""The span's part of a traceparent, with its dashes."""
_LONGEST_STATE: Final = 512
_LONGEST_NAME: Final = 200
_PEOPLE: Final = {"request-id": "request_id", "user-id": "user_id"}
_DRAWN: Final = 1000
_ready: list[bytes] = []
"""New traceparents in stock, drawn and formatted many at a time: a quarter of the price of one by one."""

NO_PARENTS: Final[Mapping[int, bytes]] = MappingProxyType({})


class Context(NamedTuple):
    """What a record says of the trace that it belongs to."""

    trace: bytes
    """32 hex digits."""
    span: bytes | None
    """Of whoever wrote it, 16 hex digits; None where only the trace is known."""
    sampled: bool
    """Whether its writer keeps the trace."""
    state: bytes | None
    """Its tracestate, which is passed on as it is."""


def context_of(headers: Headers) -> Context | None:
    """From `traceparent` (and `tracestate`), else from a plain `trace-id`, which may have dashes like a UUID."""
    found = _read(headers)
    return None if found is None else Context(*found)


def _read(headers: Headers) -> tuple[bytes, bytes | None, bool, bytes | None] | None:
    """The fields of a Context: outputs are many, and a tuple with names is twice the price of one without."""
    trace = span = state = plain = None
    sampled = False
    for name, value in headers:
        if not value:
            continue
        if name == "traceparent":
            if match := _TRACEPARENT(value) or _LATER(value):
                trace, span, flag = match.groups()
                sampled = flag in _KEPT
        elif name == "tracestate":
            state = value if len(value) <= _LONGEST_STATE else None
        elif name == "trace-id":
            plain = value.replace(b"-", b"")
    if trace is not None and trace != _NO_TRACE and span != _NO_SPAN:
        return trace, span, sampled, state
    if plain is not None and plain != _NO_TRACE and _TRACE_ID(plain):
        return plain, None, False, None
    return None


def kept_trace(record: Record) -> str | None:
    """The trace of a record whose writer keeps it: where to look for more than a number."""
    context = context_of(record.headers) if record.headers else None
    return context.trace.decode() if context is not None and context.sampled else None


def people(headers: Headers) -> dict[str, str]:
    """Who a record is on behalf of, as its headers `request-id` and `user-id` say."""
    return {
        _PEOPLE[name]: value[:_LONGEST_NAME].decode("utf-8", "backslashreplace")
        for name, value in headers
        if name in _PEOPLE and value
    }


def output_headers(
    topic: str, partition: int, records: Sequence[Record], parents: Mapping[int, bytes] = NO_PARENTS
) -> list[list[tuple[str, bytes]]]:
    """Headers of the outputs of records of one partition: `source`, `traceparent` and `tracestate`, one list a record.

    The trace is the input's, and sampled if that is; else a new one, which nobody keeps. parents: offset -> the
    traceparent of the span that its outputs belong to, where there is one.
    """
    return traced([f"{topic}/{partition}/{record.offset}" for record in records], records, parents)


def traced(
    sources: Sequence[str], records: Sequence[Record], parents: Mapping[int, bytes] = NO_PARENTS
) -> list[list[tuple[str, bytes]]]:
    """As output_headers(), where it is known already where each record stands."""
    fresh = _fresh(len(records))
    states: dict[int, bytes] = {}
    for i, record in enumerate(records):
        if record.headers and (found := _read(record.headers)) is not None:
            trace, _, sampled, state = found
            fresh[i] = b"00-%b%b%b" % (trace, fresh[i][_SPAN], b"01" if sampled else b"00")
            if state is not None:
                states[i] = state
    if parents:
        fresh = [parents.get(record.offset, parent) for record, parent in zip(records, fresh, strict=True)]
    headers = [
        [("source", source.encode()), ("traceparent", parent)] for source, parent in zip(sources, fresh, strict=True)
    ]
    for i, state in states.items():
        headers[i].append(("tracestate", state))
    return headers


def _fresh(n: int) -> list[bytes]:
    """n traceparents of new traces."""
    if len(_ready) < n:
        _ready.extend(_drawn(max(n, _DRAWN)))
    taken = _ready[-n:]
    del _ready[-n:]
    return taken


def _drawn(n: int) -> list[bytes]:
    digits = np.frombuffer(os.urandom(24 * n).hex().encode(), np.uint8).reshape(n, 48)
    text = np.empty((n, len(_BLANK)), np.uint8)
    text[:] = _BLANK
    text[:, 3:35] = digits[:, :32]
    text[:, 36:52] = digits[:, 32:]
    return cast(list[bytes], text.view(f"S{len(_BLANK)}")[:, 0].tolist())
