"""One trace from the producer through the worker to its outputs, numbers that add up, log lines that name both."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from core.erasure import pseudonym
from tests.kafka import Broker
from tests.otlp import Collector, collector
from tests.rig import Rig, rig_on
from tests.stream import EPOCH_MS, Record
from tests.worker import Worker, until

PARENT = "b7ad6b7169203331"


def numbers(worker: Worker) -> dict[tuple[str, frozenset[tuple[str, str]]], Any]:
    """Sample name and labels -> sample, as Prometheus asks for them and reads them."""
    request = urllib.request.Request(f"{worker.url}/metrics", headers={"Accept": "application/openmetrics-text"})
    with urllib.request.urlopen(request, timeout=5) as response:
        families = text_string_to_metric_families(response.read().decode())
    return {(s.name, frozenset(s.labels.items())): s for family in families for s in family.samples}


class Observed:
    """A worker that has answered some events: one in ten of them has a trace that its sender keeps."""

    def __init__(self, rig: Rig, spans: Collector) -> None:
        self.rig, self.spans = rig, spans
        self.worker = rig.worker("a", otlp_endpoint=spans.url, trace_attributes="tenant", log_format="json")
        self.worker.environment["OTEL_BSP_SCHEDULE_DELAY"] = "200"
        self.worker.start()
        rig.deploy()
        self.traces = [os.urandom(16).hex() for _ in range(6)]
        for n in range(60):
            headers = {"traceparent": f"00-{self.traces[n // 10]}-{PARENT}-01"} if n % 10 == 0 else {}
            self.send(f"e{n}", f"s{n % 7}", headers)
        self.bad = os.urandom(16).hex()
        self.send("bad", "s1", {"traceparent": f"00-{self.bad}-{PARENT}-01", "user-id": "u4"}, features={})
        rig.publisher.flush()
        rig.wait_records("predictions", 60)
        rig.wait_records("dead-letters", 1)

    def send(self, name: str, session: str, headers: dict[str, str], **changes: Any) -> None:
        event = {"id": name, "session": session, "ts": EPOCH_MS, "features": {"f0": 1.0}, "tenant": "acme"} | changes
        self.rig.publisher.send(self.rig.topic("observations"), session.encode(), json.dumps(event).encode(), headers)

    def outputs(self, topic: str) -> list[Record]:
        return self.rig.reader(topic).read_out()

    def value(self, name: str, **labels: str) -> Any:
        return numbers(self.worker)[f"homunculus_{name}", frozenset(labels.items())].value


@pytest.fixture
def observed(kafka: Broker, tmp_path: Path) -> Any:
    with collector(tmp_path) as spans, rig_on(kafka, tmp_path) as rig:
        yield Observed(rig, spans)


def test_producer_worker_and_consumer_are_one_trace_and_the_numbers_add_up(observed: Observed) -> None:
    worker, topic = observed.worker, observed.rig.topic
    observations = topic("observations")

    def eventually(what: Callable[[], bool], named: str) -> None:
        until(what, 10, what=named, alive=[worker])

    eventually(lambda: observed.value("events_committed_total", topic=observations) == 61, "all events are committed")
    assert observed.value("outputs_total", topic=topic("predictions")) == 60
    assert observed.value("dead_letters_total", topic=observations, reason="FieldError") == 1
    assert observed.value("latency_seconds_count") >= 61
    for stage in ("arrive", "queue", "decode", "fold", "model", "encode", "work", "commit"):
        assert observed.value("stage_seconds_count", stage=stage) >= 61, stage
    eventually(
        lambda: sum(s.value for (name, _), s in numbers(worker).items() if name == "homunculus_lag_records") == 0,
        "there is no lag",
    )
    assert observed.value("ready") == observed.value("model_live", model="tally", version="1", role="active") == 1
    assert 0 < observed.value("model_call_rows_sum", model="tally", version="1") <= 60
    assert observed.value("rocksdb_memory_bytes", kind="write_buffers") > 0
    shown = {s.exemplar.labels["trace_id"] for s in numbers(worker).values() if s.exemplar}
    assert shown
    assert shown <= {*observed.traces, observed.bad}

    wanted = {*observed.traces, observed.bad}
    eventually(lambda: {span["trace"] for span in observed.spans.spans} >= wanted, "the collector has every trace")
    spans = {span["trace"]: span for span in observed.spans.spans}
    for record in observed.outputs("predictions"):
        _, trace, parent, flag = record.headers["traceparent"].split("-")
        assert (trace in spans) == (flag == "01") == (record.json["event_id"] in {f"e{10 * n}" for n in range(6)})
        if trace in spans:
            assert (spans[trace]["span"], spans[trace]["parent"]) == (parent, PARENT)
            assert spans[trace]["attributes"]["homunculus.source"] == record.headers["source"]
            assert spans[trace]["attributes"]["app.tenant"] == "acme"
            assert spans[trace]["end"] - spans[trace]["start"] < 10e9
    [letter] = observed.outputs("dead-letters")
    assert letter.headers["traceparent"] == f"00-{observed.bad}-{spans[observed.bad]['span']}-01"
    assert (spans[observed.bad]["status"], spans[observed.bad]["attributes"]["user.id"]) == ("FieldError", "u4")
    batches = {span["span"]: span for span in observed.spans.spans if not span["parent"]}
    assert all(batches[link]["trace"] not in wanted for trace in wanted for link in spans[trace]["links"])
    assert {span["resource"]["service.name"] for span in observed.spans.spans} == {topic("app")}

    lines = [json.loads(line) for line in worker.log(None).splitlines() if line.startswith("{")]
    assert all(line.keys() >= {"time", "level", "logger", "message"} for line in lines)
    assert pseudonym("s1") in {span["attributes"].get("homunculus.session") for span in observed.spans.spans}
    assert worker.terminate() == 0
