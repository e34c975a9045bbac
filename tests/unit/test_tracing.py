"""Headers of outputs: where the input stood, and the trace it belongs to."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.record import Record
from engine.tracing import output_headers

TRACE = b"0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-01")


def record(offset: int, *headers: tuple[str, bytes | None]) -> Record:
    return cast(Record, SimpleNamespace(offset=offset, headers=list(headers)))


def traces(*records: Record) -> list[tuple[bytes, bytes]]:
    found = [TRACEPARENT.fullmatch(dict(headers)["traceparent"]) for headers in output_headers("t", 0, records)]
    return [cast(Any, match).groups() for match in found]


def test_each_output_names_its_source() -> None:
    headers = output_headers("observations", 3, [record(1042), record(1043)])
    assert [dict(h)["source"] for h in headers] == [b"observations/3/1042", b"observations/3/1043"]


def test_events_without_a_trace_get_one_each_and_none_comes_twice() -> None:
    seen = [pair for size in (1, 10, 2500, 1) for pair in traces(*map(record, range(size)))]
    assert len({trace for trace, _ in seen}) == len({span for _, span in seen}) == 2512


@pytest.mark.parametrize(
    "header",
    [
        ("traceparent", b"00-%b-b7ad6b7169203331-01" % TRACE),
        ("trace-id", TRACE),
        ("trace-id", b"0af76519-16cd-43dd-8448-eb211c80319c"),
    ],
)
def test_an_events_own_trace_goes_on_with_a_span_of_its_own(header: tuple[str, bytes]) -> None:
    (_, before), (trace, span), (other, _) = traces(record(0), record(1, ("x", None), header), record(2))
    assert trace == TRACE
    assert span not in (before, b"b7ad6b7169203331")
    assert other != TRACE


@pytest.mark.parametrize("header", [("traceparent", b"nonsense"), ("traceparent", None), ("trace-id", b"123")])
def test_what_is_no_trace_is_replaced(header: tuple[str, bytes | None]) -> None:
    [(trace, _)] = traces(record(0, header))
    assert len(trace) == 32
