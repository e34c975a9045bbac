"""Headers of outputs: where the input stood, and the trace it belongs to."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.record import Record
from engine.tracing import context_of, kept_trace, output_headers

TRACE = b"0af7651916cd43dd8448eb211c80319c"
SPAN = b"b7ad6b7169203331"
TRACEPARENT = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-(0[01])")


def record(offset: int, *headers: tuple[str, bytes | None]) -> Record:
    return cast(Record, SimpleNamespace(offset=offset, headers=list(headers)))


def traces(*records: Record) -> list[tuple[bytes, bytes, bytes]]:
    found = [TRACEPARENT.fullmatch(dict(headers)["traceparent"]) for headers in output_headers("t", 0, records)]
    return [cast(Any, match).groups() for match in found]


def test_each_output_names_its_source() -> None:
    headers = output_headers("observations", 3, [record(1042), record(1043)])
    assert [dict(h)["source"] for h in headers] == [b"observations/3/1042", b"observations/3/1043"]


def test_events_without_a_trace_get_one_each_and_none_comes_twice() -> None:
    seen = [found for size in (1, 10, 2500, 1) for found in traces(*map(record, range(size)))]
    assert len({trace for trace, _, _ in seen}) == len({span for _, span, _ in seen}) == 2512
    assert {flag for _, _, flag in seen} == {b"00"}  # nobody keeps a trace that we have made up


@pytest.mark.parametrize(
    ("header", "flag"),
    [
        (("traceparent", b"00-%b-%b-01" % (TRACE, SPAN)), b"01"),
        (("traceparent", b"00-%b-%b-00" % (TRACE, SPAN)), b"00"),
        (("traceparent", b"00-%b-%b-03" % (TRACE, SPAN)), b"01"),
        (("traceparent", b"cc-%b-%b-01-what the future brings" % (TRACE, SPAN)), b"01"),
        (("trace-id", TRACE), b"00"),
        (("trace-id", b"0af76519-16cd-43dd-8448-eb211c80319c"), b"00"),
    ],
)
def test_an_events_own_trace_goes_on_with_a_span_of_its_own(header: tuple[str, bytes], flag: bytes) -> None:
    (_, before, _), (trace, span, sampled), (other, _, _) = traces(record(0), record(1, ("x", None), header), record(2))
    assert trace == TRACE
    assert span not in (before, SPAN)
    assert sampled == flag
    assert other != TRACE


@pytest.mark.parametrize(
    "header",
    [
        ("traceparent", b"nonsense"),
        ("traceparent", None),
        ("traceparent", b"ff-%b-%b-01" % (TRACE, SPAN)),
        ("traceparent", b"00-%b-%b-01-more" % (TRACE, SPAN)),
        ("traceparent", b"cc-%b-%b-01more" % (TRACE, SPAN)),
        ("traceparent", b"00-%b-%b-01" % (TRACE.upper(), SPAN)),
        ("traceparent", b"00-%b-%b-01" % (32 * b"0", SPAN)),
        ("traceparent", b"00-%b-%b-01" % (TRACE, 16 * b"0")),
        ("trace-id", b"123"),
        ("trace-id", 32 * b"0"),
    ],
)
def test_what_is_no_trace_is_replaced(header: tuple[str, bytes | None]) -> None:
    assert context_of([header]) is None
    [(trace, _, _)] = traces(record(0, header))
    assert trace not in (TRACE, 32 * b"0")


def test_the_state_of_a_trace_is_passed_on_with_it() -> None:
    parent, state = ("traceparent", b"00-%b-%b-01" % (TRACE, SPAN)), ("tracestate", b"vendor=1,other=2")
    long = ("tracestate", b"v=" + 600 * b"x")
    found = output_headers("t", 0, [record(0, state, parent), record(1, state), record(2, parent, long)])
    assert [dict(headers).get("tracestate") for headers in found] == [b"vendor=1,other=2", None, None]


def test_an_output_of_work_that_is_a_span_belongs_to_that_span() -> None:
    ours = b"00-%b-%b-01" % (TRACE, 16 * b"a")
    found = output_headers("t", 0, [record(7), record(8)], {8: ours})
    assert dict(found[1])["traceparent"] == ours
    assert dict(found[0])["traceparent"] != ours


def test_only_a_trace_that_its_sender_keeps_is_worth_looking_for() -> None:
    assert kept_trace(record(0)) is None
    assert kept_trace(record(0, ("traceparent", b"00-%b-%b-00" % (TRACE, SPAN)))) is None
    assert kept_trace(record(0, ("traceparent", b"00-%b-%b-01" % (TRACE, SPAN)))) == TRACE.decode()
