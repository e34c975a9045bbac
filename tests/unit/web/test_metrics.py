"""GET /metrics: what Prometheus' own parsers make of it, and that it is what docs/observability.md lists."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from core.rules import Rule, RuleSet
from models.decoder.figures import Figures as Talked
from models.drift.ordering import OrderingState
from models.drift.singles import Singles
from models.limits import Figures
from models.meter import ModelMeter
from models.swap import Stage
from tables.drift import Reference, Watch, packed, references, watches
from tests.unit.web.detectors import monitor
from tests.unit.web.worker import Make, Start, Worker
from web.metrics import WorkerCollector

DOCS = Path(__file__).parents[3] / "docs" / "observability.md"
OPEN = {"Accept": "application/openmetrics-text;version=1.0.0;q=0.7,text/plain;version=0.0.4;q=0.3"}
TRACE = "0af7651916cd43dd8448eb211c80319c"


class Listed(NamedTuple):
    """A metric as the documentation has it."""

    kind: str
    unit: str
    labels: frozenset[str]


MONITOR = monitor("churn", "2", ill=False, labels=8)
WATCHED = watches.encode(packed(Watch(OrderingState(), MONITOR.state, Singles())))
HELD = references.encode(packed(Reference(MONITOR.spec, MONITOR.frozen)))


def listed() -> dict[str, Listed]:
    row = re.compile(r"^\| `(homunculus_\w+)` \| (\w+) \| (\w*) ?\| ([\w, ]*) ?\| .{20,} \|$", re.MULTILINE)
    return {
        name: Listed(kind, unit, frozenset(re.findall(r"\w+", labels)))
        for name, kind, unit, labels in row.findall(DOCS.read_text())
    }


def seen(metrics: list[Metric]) -> dict[str, Listed]:
    found = {}
    for metric in metrics:
        labels = frozenset(label for sample in metric.samples for label in sample.labels) - {"le"}
        found[metric.name] = Listed(metric.type, metric.unit, labels)
    return found


def busy(worker: Worker) -> Worker:
    """The worker has something to say in each metric."""
    engine: Any = worker.app.engine
    meters = engine.meters
    meters.read["observations"] += 5
    meters.committed["observations"] += 5
    meters.outputs["predictions"] += 4
    meters.dead_letters["observations", "DecodeError"] += 1
    meters.late["clicks"] += 1
    meters.crowded[0] += 0.5
    meters.stage("fold", 0.004, 4, TRACE)
    for histogram in (meters.latency, meters.commits, meters.batches, meters.loop_lag):
        histogram.observe(0.02, 1, TRACE)
    engine.models.device.memory.limit = 10**9
    engine.tasks = {0: task(open=True, topics=["observations"]), 1: task(open=False, topics=["observations"])}
    engine.tables |= {watches.name: watches, references.name: references}
    engine.pulse.lag = lambda: {"observations": {0: 7}}
    engine.standbys.staleness = lambda: {2: 1.5, 3: None}
    engine.knowledge.qdrant = SimpleNamespace(error="")
    engine.knowledge.reranking.name = "ranks"
    engine.gate.counts["llm_trigger_policy", "admins", "pass"] += 1
    talking = SimpleNamespace(version="1", engine=SimpleNamespace(figures=Talked(turns=3, prompt_tokens=100)))
    engine.models.decoders = lambda: {"smollm2": talking}
    meter = ModelMeter()
    meter.answered(100, 0, 0.002)
    engine.models.versions = lambda: [
        SimpleNamespace(
            manifest=SimpleNamespace(name="churn", feedback=object()),
            version=version,
            meter=meter,
            figures=Figures(answers=100, compared=10, agreed=9, dropped=1, labelled=4, right=3, loss=2.0),
            course=SimpleNamespace(stage=stage),
            precision="fp32",
            memory=1_000_000,
        )
        for version, stage in (("2", Stage.ACTIVE), ("3", Stage.CANARY))
    ]
    engine.models.status = lambda: {"churn": {"frozen": True, "canary": {"share": 0.1}}}
    return worker


def task(**given: Any) -> Any:
    return SimpleNamespace(
        waits_since=None,
        unfinished_of=lambda topic: 3,
        staged=2,
        to_replay=1000,
        reason="restoring its tables",
        sizes=lambda: {"notes": (10, 1000, 3), "drift": (1, 9, 0)},
        store=SimpleNamespace(close=lambda: None),
        shard=lambda table: SimpleNamespace(walk=lambda start: [(b"churn@2", WATCHED)], finished=lambda key: HELD),
        **given,
    )


async def text(worker: Worker, **headers: str) -> tuple[str, str]:
    async with worker.client.get("/metrics", headers=headers) as answer:
        assert answer.status == 200
        return answer.headers["Content-Type"], await answer.text()


async def test_the_documentation_lists_every_metric_with_type_unit_and_labels(make: Make) -> None:
    collector = WorkerCollector(busy(make()).app)
    assert seen(list(collector.collect())) == listed()


async def test_what_labels_say_is_there_for_each_version(make: Make) -> None:
    found = {metric.name: metric for metric in WorkerCollector(busy(make()).app).collect()}
    samples = found["homunculus_model_quality"].samples
    assert {(sample.labels["model"], sample.labels["version"]) for sample in samples} == {("churn", "2")}
    figures = {sample.labels["figure"]: sample.value for sample in samples}
    assert figures == pytest.approx({"accuracy": 0.75, "auc": 0.5, "ece": 0.05, "log_loss": 0.569717}, abs=1e-5)


async def test_who_accepts_openmetrics_gets_it_with_the_traces_to_look_at(start: Start) -> None:
    kind, body = await text(busy(await start()), **OPEN)
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    metrics = {metric.name: metric for metric in parse_openmetrics(body)}
    assert metrics["homunculus_events_committed"].samples[0].value == 5
    [exemplar] = [s.exemplar for s in metrics["homunculus_stage_seconds"].samples if s.exemplar]
    assert exemplar.labels == {"trace_id": TRACE}
    assert "process_resident_memory_bytes" in metrics


async def test_others_get_prometheus_older_format(start: Start) -> None:
    kind, body = await text(busy(await start()))
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    samples = {s.name: s for metric in parse_text(body) for s in metric.samples if s.labels.get("le", "+Inf") == "+Inf"}
    assert samples["homunculus_dead_letters_total"].labels == {"topic": "observations", "reason": "DecodeError"}
    assert samples["homunculus_latency_seconds_bucket"].value == samples["homunculus_latency_seconds_count"].value == 1


async def test_prometheus_own_checker_has_nothing_to_say(start: Start) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool isn't installed (Debian: prometheus)")
    _, body = await text(busy(await start()))
    ours = "".join(line for line in body.splitlines(True) if "homunculus_" in line)
    checked = subprocess.run([promtool, "check", "metrics"], input=ours, text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


@pytest.mark.parametrize("accept", ["", "*/*", "text/html", "application/openmetrics-text; version=nonsense\t", "\\"])
async def test_whatever_a_client_accepts_is_answered(start: Start, accept: str) -> None:
    _, body = await text(await start(), Accept=accept)
    assert "homunculus_ready 0" in body


async def test_a_rule_that_fails_on_records_is_told_about(start: Start) -> None:
    worker = await start()
    gate = worker.app.engine.gate
    rules = RuleSet(rules=(Rule(name="paying", when="user.tier == 'paid'"),))
    await gate.put("policy", rules)
    for _ in range(3):
        await gate.judge("messages", {"user": {}})
    _, body = await text(worker)
    assert 'homunculus_rules_total{did="unknown",rule="paying",set="policy"} 3.0' in body
    assert 'homunculus_rules_total{did="late",rule="paying",set="policy"} 0.0' in body


async def test_a_worker_that_has_not_begun_has_numbers_too(start: Start) -> None:
    _, body = await text(await start(), **OPEN)
    assert {m.name for m in parse_openmetrics(body)} >= {"homunculus_partitions", "homunculus_latency_seconds"}


async def test_numbers_need_the_token_where_there_is_one(start: Start) -> None:
    worker = await start(web_token=cast(Any, "all"), web_read_token=cast(Any, "read"))
    assert (await worker.get("/metrics"))[0] == 401
    _, body = await text(worker, Authorization="Bearer read")
    assert "homunculus_ready" in body
