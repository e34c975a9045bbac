"""A collector in a process of its own: takes OTLP over HTTP as the protocol's own types decode it, a line a span.

python -m tests.otlp PORT FILE
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
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
def collector(folder: Path) -> Iterator[Collector]:
    """Runs inside the block alone."""
    found = Collector(free_port(), folder / "spans.jsonl")
    command = [sys.executable, "-m", "tests.otlp", str(found.port), str(found.path)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        until(lambda: answers(found.port), 20, what="the collector listens")
        yield found
    finally:
        process.kill()
        process.wait()


def decoded(body: bytes) -> Iterator[dict[str, Any]]:
    """The spans of one request."""
    request = ExportTraceServiceRequest.FromString(body)
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


class _Handler(BaseHTTPRequestHandler):
    path_to: Path

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path != "/v1/traces" or self.headers["Content-Type"] != "application/x-protobuf":
            self.send_error(404)
            return
        with self.path_to.open("a") as out:
            out.write("".join(json.dumps(span) + "\n" for span in decoded(body)))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.end_headers()
        self.wfile.write(ExportTraceServiceResponse().SerializeToString())

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


if __name__ == "__main__":
    _Handler.path_to = Path(sys.argv[2])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Handler).serve_forever()
