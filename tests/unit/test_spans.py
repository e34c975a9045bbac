"""Which spans come of a batch, what they say and what they keep to themselves; without a collector."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from core.erasure import pseudonym
from core.errors import SettingsError
from core.settings import Settings
from core.topics import Direction, TopicSpec
from engine.agent import Agent, Stream
from engine.app import tracer
from engine.batch import current_slice
from engine.spans import FLUSH_S, Tracer
from engine.testing import InMemory, in_memory
from tests.worker import ROOT

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
KEPT = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
UNKEPT = {"traceparent": f"00-{'1' * 32}-{SPAN}-00"}


class Order(msgspec.Struct):
    id: str
    session: str
    tenant: str | None = None
    attributes: dict[str, Any] | None = None


ORDERS = TopicSpec("orders", "session", Order, Direction.IN)
DONE = TopicSpec("done", "session", Order, Direction.OUT)


async def take(stream: Stream[Order]) -> None:
    async for batch in stream:
        for order in batch:
            if order.id == "bad":
                raise ValueError(order.id)
            at = next(i for i, known in enumerate(current_slice().events) if known is order)
            current_slice().send(DONE, order.session, order, at)
        batch.lap("take")


async def take_each(stream: Stream[Order]) -> None:
    async def handle(order: Order) -> None:
        trace.get_tracer("mine")  # what an agent makes of spans belongs to the event's
        seen.append(trace.get_current_span().get_span_context().span_id)
        current_slice().send(DONE, order.session, order)

    await stream.each(handle, concurrency=4)


seen: list[int] = []


class Traced:
    """A trial whose spans stay here."""

    def __init__(self, trial: InMemory) -> None:
        self.trial = trial
        self._kept = InMemorySpanExporter()
        settings = Settings(trace_attributes=("tenant", "order.channel", "big", "secret.none"))
        trial.engine.traces = Tracer(settings, "w1", SimpleSpanProcessor(self._kept))

    def publish(self, order: Order, headers: Mapping[str, str] = {}) -> None:
        self.trial.publish(ORDERS, [order], headers=headers)

    @property
    def batches(self) -> list[ReadableSpan]:
        return [span for span in self._kept.get_finished_spans() if span.parent is None]

    @property
    def events(self) -> list[ReadableSpan]:
        return [span for span in self._kept.get_finished_spans() if span.parent is not None]


@pytest.fixture
async def traced() -> AsyncIterator[Traced]:
    async with in_memory([Agent(ORDERS, take, (DONE,))], []) as trial:
        yield Traced(trial)


def said(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_batch_is_one_span_and_only_an_event_whose_sender_keeps_its_trace_has_its_own(traced: Traced) -> None:
    traced.publish(Order("a", "ann"), KEPT)
    traced.publish(Order("b", "bob"), UNKEPT)
    traced.publish(Order("c", "cat"))
    await traced.trial.read(ORDERS, 10)
    [batch] = traced.batches
    assert not traced.events  # its commit is still to come
    await traced.trial.commit()
    [event] = traced.events
    assert batch.name == event.name == "process orders"
    assert event.context.trace_id == int(TRACE, 16)
    assert event.parent is not None
    assert event.parent.span_id == int(SPAN, 16)
    assert [link.context.span_id for link in batch.links] == [int(SPAN, 16)]
    assert [link.context.span_id for link in event.links] == [batch.context.span_id]
    assert said(batch)["messaging.batch.message_count"] == 3
    assert said(batch)["homunculus.sources"] == ("orders/0/0-2",)
    for span in (batch, event):
        assert said(span).keys() >= {f"homunculus.stage.{name}_s" for name in ("decode", "take", "work")}


async def test_outputs_of_an_event_go_on_from_its_span(traced: Traced) -> None:
    traced.publish(Order("a", "ann"), KEPT | {"tracestate": "v=1"})
    traced.publish(Order("b", "bob"), UNKEPT)
    await traced.trial.read(ORDERS, 10)
    await traced.trial.commit()
    [event] = traced.events
    first, second = (output.headers for output in traced.trial.outputs(DONE))
    assert first["traceparent"] == f"00-{TRACE}-{event.context.span_id:016x}-01"
    assert first["tracestate"] == "v=1"
    assert second["traceparent"].startswith(f"00-{'1' * 32}-")
    assert second["traceparent"].endswith("-00")


async def test_a_span_says_of_its_event_what_is_allowed_and_no_more(traced: Traced) -> None:
    attributes = {"order": {"channel": "web", "iban": "DE00"}, "big": "x" * 1000, "secret": {"none": ["no", "text"]}}
    order = Order("a", "ann", "acme", attributes)
    traced.publish(order, KEPT | {"request-id": "r-17", "user-id": "u-4", "cookie": "hush"})
    await traced.trial.read(ORDERS, 10)
    await traced.trial.commit()
    [event] = traced.events
    told = {
        name: value for name, value in said(event).items() if not name.startswith(("messaging.", "homunculus.stage"))
    }
    assert told == {
        "homunculus.source": "orders/0/0",
        "homunculus.session": pseudonym("ann"),
        "request.id": "r-17",
        "user.id": "u-4",
        "app.tenant": "acme",
        "app.order.channel": "web",
        "app.big": "x" * 200,
    }


async def test_a_dead_letters_span_has_failed_and_its_trace_goes_on(traced: Traced) -> None:
    traced.publish(Order("good", "ann"), KEPT)
    traced.publish(Order("bad", "ann"), KEPT)
    traced.trial.publish(ORDERS, [b"no JSON"], key="ann", headers=KEPT)
    while await traced.trial.read(ORDERS, 1):
        pass
    await traced.trial.commit()
    reasons = {said(span)["homunculus.source"]: span.status for span in traced.events}
    assert reasons["orders/0/0"].status_code is StatusCode.UNSET
    assert (reasons["orders/0/1"].status_code, reasons["orders/0/1"].description) == (StatusCode.ERROR, "ValueError")
    assert (reasons["orders/0/2"].status_code, reasons["orders/0/2"].description) == (StatusCode.ERROR, "DecodeError")
    letters = traced.trial.dead_letters()
    assert all(letter.headers["traceparent"].startswith(f"00-{TRACE}-") for letter in letters)
    failed = [span for span in traced.batches if span.status.status_code is StatusCode.ERROR]
    assert not any(span.events for span in failed)  # what an exception says may be what the event says
    assert [span.status.description for span in failed] == ["ValueError"] * 2  # in the batch, and then alone


async def test_an_event_that_is_worked_on_alone_has_its_own_span_around_its_work() -> None:
    async with in_memory([Agent(ORDERS, take_each, (DONE,))], []) as trial:
        traced = Traced(trial)
        seen.clear()
        for n in range(3):
            traced.publish(Order(str(n), f"s{n}"), KEPT if n == 1 else {})
        await trial.read(ORDERS, 10)
        await trial.settle()
        [event], [batch] = traced.events, traced.batches
        assert seen == [batch.context.span_id, event.context.span_id, batch.context.span_id]
        assert "homunculus.stage.work_s" in said(event)
        assert trial.outputs(DONE)[1].headers["traceparent"].split("-")[2] == f"{event.context.span_id:016x}"


async def test_work_that_a_crash_undoes_leaves_no_event_span(traced: Traced) -> None:
    traced.publish(Order("a", "ann"), KEPT)
    await traced.trial.read(ORDERS, 10)
    await traced.trial.crash()
    assert not traced.events


async def test_the_sampler_that_the_environment_names_decides_on_batches_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    async with in_memory([Agent(ORDERS, take, (DONE,))], []) as trial:
        traced = Traced(trial)
        traced.publish(Order("a", "ann"), KEPT)
        await trial.read(ORDERS, 10)
        await trial.commit()
        assert not traced.batches
        assert len(traced.events) == 1


async def test_switched_off_by_the_sdks_own_variable_outputs_go_on_from_their_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    async with in_memory([Agent(ORDERS, take, (DONE,))], []) as trial:
        traced = Traced(trial)
        traced.publish(Order("a", "ann"), KEPT)
        await trial.read(ORDERS, 10)
        await trial.commit()
        assert not traced.batches + traced.events
        assert trial.outputs(DONE)[0].headers["traceparent"] == KEPT["traceparent"]


async def test_a_collector_that_is_away_does_not_keep_a_worker() -> None:
    tracer = Tracer.to_collector(Settings(otlp_endpoint=cast(Any, "http://127.0.0.1:9")), "w1")
    tracer.start("lost", Context(), [], {}).end()
    began = time.monotonic()
    await tracer.close()
    assert time.monotonic() - began < FLUSH_S + 2


def test_without_an_endpoint_opentelemetry_is_not_even_imported() -> None:
    code = (
        "import app, sys; from core.settings import Settings; from engine.app import tracer; "
        "assert tracer(Settings(), 'w1') is None; sys.exit('opentelemetry' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "engine.spans")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(SettingsError, match=r"opentelemetry.*the extra `otel`"):
        tracer(Settings(otlp_endpoint=cast(Any, "http://127.0.0.1:9")), "w1")
