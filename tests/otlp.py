"""A collector in a process of its own: takes OTLP over HTTP, or gRPC, as the protocol's own types decode it, a line a
span.

python -m tests.otlp PORT FILE http|grpc
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from tests.worker import ROOT, answers, free_port, until


@dataclass(frozen=True)
class Collector:
    """One that runs, and what it has got."""

    port: int
    path: Path

    @property
    def url(self) -> str:
        """The value of HOMUNCULUS_OTLP_ENDPOINT."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def spans(self) -> list[dict[str, Any]]:
        """name, trace, span, parent, links (span ids), attributes, status, start and end (ns), and the resource's."""
        text = self.path.read_text() if self.path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


@contextmanager
def collector(folder: Path, by: Literal["http", "grpc"] = "http") -> Iterator[Collector]:
    """Runs inside the block alone."""
    found = Collector(free_port(), folder / "spans.jsonl")
    command = [sys.executable, "-m", "tests.otlp", str(found.port), str(found.path), by]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        until(lambda: answers(found.port), 20, what="the collector listens")
        yield found
    finally:
        process.kill()
        process.wait()


def decoded(request: ExportTraceServiceRequest) -> Iterator[dict[str, Any]]:
    """The spans of one request."""
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield {
                    "name": span.name,
                    "trace": span.trace_id.hex(),
                    "span": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "links": [link.span_id.hex() for link in span.links],
                    "attributes": _values(span.attributes),
                    "status": span.status.message if span.status.code == span.status.STATUS_CODE_ERROR else "",
                    "start": span.start_time_unix_nano,
                    "end": span.end_time_unix_nano,
                    "resource": _values(resource.resource.attributes),
                }


def _values(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind) if kind is not None else None


def note(path: Path, request: ExportTraceServiceRequest) -> None:
    """A line for each span."""
    with path.open("a") as out:
        out.write("".join(json.dumps(span) + "\n" for span in decoded(request)))


class _Handler(BaseHTTPRequestHandler):
    path_to: Path

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path != "/v1/traces" or self.headers["Content-Type"] != "application/x-protobuf":
            self.send_error(404)
            return
        note(self.path_to, ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.end_headers()
        self.wfile.write(ExportTraceServiceResponse().SerializeToString())

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


class _Service(TraceServiceServicer):
    def __init__(self, path: Path) -> None:
        self._path = path

    def Export(  # noqa: N802  the service's name for it
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        note(self._path, request)
        return ExportTraceServiceResponse()


def _serve(port: int, path: Path, by: str) -> None:
    if by == "grpc":
        server = grpc.server(ThreadPoolExecutor(2))
        add_TraceServiceServicer_to_server(_Service(path), server)
        server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        server.wait_for_termination()
    else:
        _Handler.path_to = path
        ThreadingHTTPServer(("127.0.0.1", port), _Handler).serve_forever()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
