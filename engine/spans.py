"""Spans of OpenTelemetry: one a batch, and one for each event whose sender keeps its trace; never one for the others.

The only module that imports OpenTelemetry, and imported only where HOMUNCULUS_OTLP_ENDPOINT asks for traces. What the
SDK can be told by its own variables (OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS, OTEL_RESOURCE_ATTRIBUTES, ...) it
reads by itself.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self
from urllib.parse import urlsplit

from opentelemetry import context, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, StatusCode, TraceFlags, TraceState

from core.erasure import pseudonym
from core.errors import SettingsError
from core.settings import Settings
from engine.batch import Slice
from engine.record import Record
from engine.tracing import Context, context_of, people

LINKS: Final = 128
"""Of a batch's span: what the SDK keeps, too."""
LONGEST: Final = 200
"""Characters of an attribute that comes out of a record."""
FLUSH_S: Final = 3.0
"""Seconds that the last spans have to leave when the worker stops."""
PROTOCOL: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
"""OpenTelemetry's variables for how spans travel; the first that says anything counts."""
HTTP, GRPC = "http/protobuf", "grpc"


class EventSpan:
    """The work on one event, until its commit has ended."""

    __slots__ = ("_span", "offset")

    def __init__(self, span: Span, offset: int) -> None:
        self._span = span
        self.offset = offset

    @property
    def traceparent(self) -> bytes:
        """What its outputs carry on."""
        its = self._span.get_span_context()
        return f"00-{its.trace_id:032x}-{its.span_id:016x}-{its.trace_flags & 1:02x}".encode()

    def note(self, attributes: Mapping[str, Any]) -> None:
        """Adds what is known by now."""
        for name, value in attributes.items():
            self._span.set_attribute(name, value)

    def failed(self, why: str) -> None:
        """Its event is a dead letter, or was too late."""
        self._span.set_status(StatusCode.ERROR, why)

    def enter(self) -> None:
        """What this asyncio task makes of spans from now on belongs to it."""
        context.attach(trace.set_span_in_context(self._span))

    def end(self) -> None:
        """Its commit has ended."""
        self._span.end()


class BatchSpan:
    """The work of an agent on one batch. What the agent makes of spans meanwhile belongs to it."""

    def __init__(self, tracer: Tracer, slices: Sequence[Slice[Any]]) -> None:
        topic = slices[0].topic
        sampled = [(s, record, found) for s in slices for record in s.records if (found := _kept(record)) is not None]
        attributes = {
            **tracer.common,
            "messaging.destination.name": topic,
            "messaging.batch.message_count": sum(s.size for s in slices),
            "homunculus.sources": [s.stretch for s in slices],
        }
        name = f"process {topic}"
        links = [Link(found) for _, _, found in sampled[:LINKS]]
        self._span = tracer.start(name, context.Context(), links, attributes)
        its = self._span.get_span_context()
        self.trace = f"{its.trace_id:032x}" if its.is_valid else None
        self._allowed = tracer.allowed
        self._slices = slices
        ours = [Link(its)]
        spans: dict[Slice[Any], list[EventSpan]] = {}
        for s, record, found in sampled:
            parent = trace.set_span_in_context(NonRecordingSpan(found), context.Context())
            span = tracer.start(name, parent, ours, tracer.common | _of_record(s, record))
            spans.setdefault(s, []).append(EventSpan(span, record.offset))
            s.trace = s.trace or f"{found.trace_id:032x}"
        for s, theirs in spans.items():
            s.give_spans(theirs)
        self._token = context.attach(trace.set_span_in_context(self._span))

    def decoded(self) -> None:
        """Events are there: those with spans get what the settings allow to be told of them."""
        for s in self._slices:
            if s.spans:
                events = dict(zip((record.offset for record in s.records), s.events, strict=True))
                for span in s.spans:
                    if (event := events.get(span.offset)) is not None:
                        span.note(_of_event(event, self._allowed))

    def end(self, laps: Mapping[str, float], error: Exception | None = None) -> None:
        """The agent is through; laps: stage -> seconds."""
        context.detach(self._token)
        stages = {f"homunculus.stage.{name}_s": round(seconds, 6) for name, seconds in laps.items()}
        for s in self._slices:
            for span in s.spans:
                span.note(stages)
        self._span.set_attributes(stages)
        if error is not None:
            # Its class alone: what it says may be what the event says.
            self._span.set_status(StatusCode.ERROR, type(error).__name__)
        self._span.end()


class Tracer:
    """Makes spans of a worker's work."""

    def __init__(self, settings: Settings, worker: str, processor: SpanProcessor) -> None:
        """processor: takes what has ended."""
        named = "OTEL_SERVICE_NAME" in os.environ or "service.name" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        who = {"service.instance.id": worker} | ({} if named else {"service.name": settings.app_id})
        self._provider = TracerProvider(resource=Resource.create(who), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("homunculus")
        self.allowed = settings.trace_attributes
        self.common: dict[str, Any] = {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.consumer.group.name": settings.app_id,
        }

    @classmethod
    def to_collector(cls, settings: Settings, worker: str) -> Self:
        """One whose spans a thread of the SDK sends to HOMUNCULUS_OTLP_ENDPOINT. Raises SettingsError."""
        return cls(settings, worker, BatchSpanProcessor(exporter(str(settings.otlp_endpoint))))

    def batch(self, slices: Sequence[Slice[Any]]) -> BatchSpan:
        """An agent begins to work on these, of one topic."""
        return BatchSpan(self, slices)

    def start(self, name: str, parent: context.Context, links: Sequence[Link], attributes: Mapping[str, Any]) -> Span:
        """A span that begins now."""
        return self._tracer.start_span(name, parent, SpanKind.CONSUMER, attributes, links)

    async def close(self) -> None:
        """Sends what is left, if the collector takes it soon."""
        # A thread that nobody waits for at the end of the process: with the collector away it may take half a minute.
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, FLUSH_S)


def exporter(endpoint: str) -> SpanExporter:
    """What sends spans to a collector, in the way that OTEL_EXPORTER_OTLP_PROTOCOL names. Raises SettingsError."""
    variable, protocol = next(((v, said) for v in PROTOCOL if (said := os.environ.get(v))), (PROTOCOL[-1], HTTP))
    path = urlsplit(endpoint).path.rstrip("/")
    if protocol == HTTP:
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as http

        return http.OTLPSpanExporter(endpoint if path else f"{endpoint.rstrip('/')}/v1/traces")
    if protocol != GRPC:
        raise SettingsError(f"{variable} is {protocol!r}; traces go by {HTTP} (the default) or {GRPC}")
    if path:
        raise SettingsError(
            f"HOMUNCULUS_OTLP_ENDPOINT has the path {path}, and {variable} says {GRPC}, which has none: give host and "
            "port alone, like http://collector:4317"
        )
    from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc

    return grpc.OTLPSpanExporter(endpoint)


def _kept(record: Record) -> SpanContext | None:
    """The span that a record was sent by, if its trace is kept."""
    found = context_of(record.headers) if record.headers else None
    if found is None or not found.sampled or found.span is None:
        return None
    return SpanContext(int(found.trace, 16), int(found.span, 16), True, TraceFlags(TraceFlags.SAMPLED), _state(found))


def _state(found: Context) -> TraceState | None:
    return TraceState.from_header([found.state.decode("ascii", "replace")]) if found.state else None


def _of_record(s: Slice[Any], record: Record) -> dict[str, Any]:
    return {
        "messaging.destination.name": s.topic,
        "messaging.destination.partition.id": str(s.partition),
        "messaging.kafka.offset": record.offset,
        "homunculus.source": f"{s.topic}/{s.partition}/{record.offset}",
        **{name.replace("_", "."): value for name, value in people(record.headers).items()},
    }


def _of_event(event: Any, allowed: Sequence[str]) -> dict[str, Any]:
    """Of what an event says: its session, as a hash, and those of its attributes and fields that are allowed."""
    session = getattr(event, "session", None)
    found: dict[str, Any] = {"homunculus.session": pseudonym(session)} if isinstance(session, str) else {}
    for name in allowed:
        value = _at(getattr(event, "attributes", None), name)
        if value is None:
            value = getattr(event, name, None)
        if isinstance(value, str):
            found[f"app.{name}"] = value[:LONGEST]
        elif isinstance(value, (bool, int, float)):
            found[f"app.{name}"] = value
    return found


def _at(attributes: Any, path: str) -> Any:
    """order.channel -> attributes["order"]["channel"]; None where that isn't there."""
    if isinstance(attributes, dict) and path in attributes:
        return attributes[path]
    for name in path.split("."):
        if not isinstance(attributes, dict):
            return None
        attributes = attributes.get(name)
    return attributes
