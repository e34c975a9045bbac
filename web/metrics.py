"""GET /metrics: what the worker has counted, for Prometheus; docs/observability.md says what each number tells."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from core.histogram import Histogram
from engine.app import App
from engine.pulse import age
from models.decoder.decoder import Decoder
from models.joining import Fate
from models.knowledge.reranking import OUTCOMES as RERANKED
from models.limits import Verdict
from models.swap import Stage
from models.version import LiveVersion
from tables.drift import conditions, quality, references, watches
from web.health import Health
from web.operations import Operation, operation
from web.parameters import parameters

if TYPE_CHECKING:
    from tables.predicted import Predicted

PREFIX: Final = "homunculus_"
OUTCOMES: Final = ("exact", "similar", "alike", "miss", "stale", "compared", "wrong")
"""Of questions that sessions have asked (tables/retrievals.py)."""
LIKENESSES: Final = ("hit", "compared", "right", "would_hit", "wrong")
"""Of questions similar to an answered one (models/knowledge/knowledge.py)."""
TRIED: Final = frozenset({Stage.CANARY, Stage.SHADOW})
OPEN_METRICS: Final = "application/openmetrics-text"


class Metrics:
    """Numbers are read on the event loop, in one piece; they become text in a thread."""

    def __init__(self, app: App) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._registry.register(WorkerCollector(app))

    def routes(self) -> list[web.RouteDef]:
        """GET /metrics."""
        return [web.get("/metrics", self.text)]

    @operation(Operation(gives=str, media="text/plain"))
    async def text(self, request: web.Request) -> web.Response:
        """OpenMetrics, with exemplars, for those who accept it; else Prometheus' older text format."""
        parameters(request)
        text = openmetrics if OPEN_METRICS in request.headers.get("Accept", "") else exposition
        content_type = text.CONTENT_TYPE_LATEST if text is openmetrics else text.CONTENT_TYPE_PLAIN_0_0_4
        body = await asyncio.to_thread(text.generate_latest, _Read(list(self._registry.collect())))
        return web.Response(body=body, headers={"Content-Type": content_type})


class _Read(Collector):
    """Metrics that were read a moment ago."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """As they were."""
        return self._metrics


class WorkerCollector(Collector):
    """One worker's numbers as Prometheus' metric families. Labels are topics, partitions, tables, stages, models with
    their versions and roles, and error classes: never a session, a key or a text of somebody else's."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._engine = app.engine
        self._health = Health(app)

    def describe(self) -> Iterable[Metric]:
        """Nothing: there is nothing to read yet when the server starts."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All of them, of this moment."""
        yield from self._events()
        yield from self._times()
        yield from self._queues()
        yield from self._state()
        yield from self._rules()
        yield from self._chat()
        yield from self._models()
        yield from self._knowledge()
        yield from self._drift()
        predicted = cast("Predicted | None", self._engine.tables.get("predicted"))  # of applications that read feedback
        fates = {fate.value: predicted.fates[fate] if predicted else 0 for fate in Fate}
        yield _counter("feedback", "What became of feedback", ["outcome"], fates)
        yield from self._worker()

    def _drift(self) -> Iterator[Metric]:
        answers: dict[tuple[str, str], int] = {}
        levels: dict[tuple[str, str, str], int] = {}
        figures: dict[tuple[str, str, str], float] = {}
        tasks = self._engine.tasks.values() if watches.name in self._engine.tables else ()
        for task in tasks:
            if task.open:
                held = task.shard(references.name)
                for key, raw in task.shard(watches.name).walk(b""):
                    model, _, version = key.decode().partition("@")
                    answers[model, version], found = conditions(raw)
                    levels |= {(model, version, kind): level for kind, level in found.items()}
                    reference = held.finished(key)
                    if reference is not None and (of := quality(reference, raw)) is not None:
                        told = of.model_dump(exclude_none=True, exclude={"rows"})
                        figures |= {(model, version, figure): value for figure, value in told.items()}
        yield _counter("drift_answers", "Answers that detectors here have looked at", ["model", "version"], answers)
        names = ["model", "version", "figure"]
        yield _gauge("model_quality", "What labels say of the newest windows of event time", names, figures)
        yield _gauge("drift_condition", "0: well, 1: opened, more: worsened", ["model", "version", "kind"], levels)

    def _events(self) -> Iterator[Metric]:
        meters = self._engine.meters
        yield _counter("events_read", "Records that agents were given; again after a failure", ["topic"], meters.read)
        yield _counter("events_committed", "Records whose commit has ended", ["topic"], meters.committed)
        yield _counter("outputs", "Records written to topics", ["topic"], meters.outputs)
        yield _counter("dead_letters", "Records that couldn't be processed", ["topic", "reason"], meters.dead_letters)
        yield _counter("late_events", "Records that came too late for their agent", ["topic"], meters.late)
        yield _counter("partitions_reopened", "Partitions given up and opened anew", [], {(): meters.reopened})
        yield _counter(
            "backpressure_seconds", "Time without room for more records", ["partition"], meters.crowded, "seconds"
        )

    def _times(self) -> Iterator[Metric]:
        meters = self._engine.meters
        yield _histogram(
            "latency_seconds", "From a record's timestamp to the end of its commit", [], {(): meters.latency}, "seconds"
        )
        yield _histogram("stage_seconds", "Time of an event in a stage", ["stage"], meters.stages, "seconds")
        yield _histogram(
            "commit_seconds", "From taking what is finished to its commit's end", [], {(): meters.commits}, "seconds"
        )
        yield _histogram("batch_events", "Records that an agent was given at once", [], {(): meters.batches}, "events")
        yield _histogram(
            "loop_lag_seconds", "How late the event loop was for a timer", [], {(): meters.loop_lag}, "seconds"
        )

    def _queues(self) -> Iterator[Metric]:
        engine = self._engine
        tasks = sorted(engine.tasks.items())
        lag = {(topic, n): left for topic, found in engine.pulse.lag().items() for n, left in found.items()}
        yield _gauge("lag_records", "Records that aren't committed yet", ["topic", "partition"], lag, "records")
        ages = {n: age(task) for n, task in tasks}
        yield _gauge(
            "commit_age_seconds", "Age of the oldest finished work without a commit", ["partition"], ages, "seconds"
        )
        unfinished = {(topic, n): task.unfinished_of(topic) for n, task in tasks for topic in task.topics}
        yield _gauge("unfinished_records", "Records at work", ["topic", "partition"], unfinished, "records")
        staged = {n: task.staged for n, task in tasks}
        yield _gauge("staged_outputs", "Outputs that wait for a commit, or for the broker", ["partition"], staged)
        rows = engine.models.queued_rows
        yield _gauge("inference_queue_rows", "Rows that wait for the inference thread", [], {(): rows}, "rows")

    def _state(self) -> Iterator[Metric]:
        engine = self._engine
        tasks = sorted(engine.tasks.items())
        parts = [task.sizes() for _, task in tasks]
        keys, sizes, held = (
            {table: sum(part[table][i] for part in parts if table in part) for table in engine.tables} for i in range(3)
        )
        yield _gauge("state_keys", "Values in RocksDB, as it estimates", ["table"], keys)
        yield _gauge("state_bytes", "Their size, as it estimates", ["table"], sizes, "bytes")
        yield _gauge("state_in_memory", "Values held in memory", ["table"], held)
        yield _gauge("rocksdb_memory_bytes", "Memory of RocksDB", ["kind"], engine.memory.usage(), "bytes")
        replay = {n: task.to_replay for n, task in tasks if not task.open}
        yield _gauge("restore_left_records", "Records to replay before it opens", ["partition"], replay, "records")
        copies = {n: old for n, old in engine.standbys.staleness().items() if old is not None}
        yield _gauge("copy_age_seconds", "How far a copy of a partition is behind", ["partition"], copies, "seconds")

    def _rules(self) -> Iterator[Metric]:
        told = "Records that a rule let pass or stopped, would have stopped in a dry run, or couldn't be told about"
        gate = self._engine.gate
        failed: dict[Label, int] = {}
        for one in gate.sets.values():
            for rule in one.compiled:
                failed[one.name, rule.rule.name, "unknown"] = rule.unknown
                failed[one.name, rule.rule.name, "late"] = rule.late
        yield _counter("rules", told, ["set", "rule", "did"], gate.counts | failed)

    def _chat(self) -> Iterator[Metric]:
        turns: dict[Label, int] = {}
        tokens: dict[Label, int] = {}
        sessions: dict[Label, int] = {}
        for name, live in self._engine.models.decoders().items():
            version = (name, live.version)
            told = cast(Decoder, live.engine).figures
            turns[version] = told.turns
            kinds = {"prompt": told.prompt_tokens, "cached": told.cached_tokens, "sampled": told.decoded_tokens}
            kinds["approximate"] = told.shifted_tokens
            tokens |= {(*version, kind): count for kind, count in kinds.items()}
            states = {"active": told.active, "waiting": told.waiting, "resident": told.resident}
            sessions |= {(*version, state): count for state, count in states.items()}
        model = ["model", "version"]
        yield _counter("chat_turns", "Replies that a language model has ended", model, turns)
        yield _counter(
            "chat_tokens",
            "Tokens of prompts, known ones and approximate ones of them, and sampled",
            [*model, "kind"],
            tokens,
        )
        yield _gauge("chat_sessions", "Sessions of a language model", [*model, "state"], sessions)

    def _models(self) -> Iterator[Metric]:
        names = ["model", "version"]
        versions = {(v.manifest.name, v.version): v for v in self._engine.models.versions()}
        live = {(*who, v.course.stage.value): 1 for who, v in versions.items()}
        yield _gauge("model_live", "Versions that answer or still compute", [*names, "role"], live)
        seconds = {who: v.meter.seconds for who, v in versions.items()}
        yield _histogram("model_call_seconds", "From a call to its answer", names, seconds, "seconds")
        rows = {who: v.meter.rows for who, v in versions.items()}
        yield _histogram("model_call_rows", "Rows of a call", names, rows, "rows")
        failures = {who: v.meter.failures for who, v in versions.items()}
        yield _counter("model_failures", "Calls without an answer", names, failures)
        yield from self._roles(list(versions.values()))
        yield from self._device(list(versions.values()))

    def _device(self, versions: list[LiveVersion]) -> Iterator[Metric]:
        device = self._engine.models.device
        fell = {(device.name, device.runs_on): int(device.fallback is not None)}
        yield _gauge("device_fallback", "Whether models run on the CPU in place of a GPU", ["asked", "got"], fell)
        named = {(v.manifest.name, v.version, v.precision): v.memory for v in versions}
        held = {who: size for who, size in named.items() if size is not None}
        labels = ["model", "version", "precision"]
        yield _gauge("model_memory_bytes", "Memory of the device that a version holds", labels, held, "bytes")
        limit = {} if device.memory.limit is None else {(): device.memory.limit}
        yield _gauge("model_memory_limit_bytes", "What all versions may hold of the device", [], limit, "bytes")
        exchanged = {name: int("held" in one) for name, one in self._engine.models.status().items()}
        yield _gauge("model_held", "Whether events wait since the version before made room", ["model"], exchanged)

    def _roles(self, versions: list[LiveVersion]) -> Iterator[Metric]:
        events: dict[Label, int] = {}
        compared: dict[Label, int] = {}
        labelled: dict[Label, int] = {}
        losses: dict[Label, float] = {}
        for version in versions:
            figures, stage = version.figures, version.course.stage
            who = (version.manifest.name, version.version, stage.value)
            events |= {(*who, "answered"): figures.answers, (*who, "failed"): figures.failures}
            if stage in TRIED:
                differed = figures.compared - figures.agreed
                compared |= {(*who, "agreed"): figures.agreed, (*who, "differed"): differed}
                compared |= {(*who, "dropped"): figures.dropped}
            if version.manifest.feedback is not None:
                labelled |= {(*who, "right"): figures.right, (*who, "wrong"): figures.labelled - figures.right}
                losses |= {} if figures.mean_loss is None else {who: figures.mean_loss}
        labels = ["model", "version", "role", "outcome"]
        yield _counter("model_events", "Events asked of a version in its role", labels, events)
        yield _counter("model_compared_events", "Events to be asked of two versions", labels, compared)
        yield _gauge(
            "model_labelled_events", "Answers of a version in its role whose labels have come", labels, labelled
        )
        yield _gauge("model_loss", "Their mean log loss, or squared error", labels[:-1], losses)
        models = self._engine.models
        status = models.status()
        shares = {name: one.get("canary", {}).get("share", 0) for name, one in status.items()}
        yield _gauge("canary_share", "Share of the sessions that the canary answers for", ["model"], shares)
        frozen = {name: int("frozen" in one) for name, one in status.items()}
        yield _gauge("model_frozen", "Whether promotions are refused", ["model"], frozen)
        failed = {name: int("error" in one) for name, one in status.items()}
        yield _gauge("model_load_failed", "Whether not all that is deployed could be loaded", ["model"], failed)
        ended = {(name, verdict.value): models.ended[name, verdict.value] for name in status for verdict in Verdict}
        yield _counter("canaries_ended", "Canaries that their limits have ended", ["model", "verdict"], ended)

    def _knowledge(self) -> Iterator[Metric]:
        knowledge = self._engine.knowledge
        seen = knowledge.seen
        states = {state: seen.get(state, 0) for state in ("pending", "failed")}
        states["found"] = seen.get("documents", 0) - sum(states.values())
        yield _gauge("knowledge_documents", "Documents that this worker has heard of", ["state"], states)
        yield _gauge("knowledge_passages", "Passages that it finds", [], {(): seen.get("passages", 0)})
        outcomes = {outcome: knowledge.counts[outcome] for outcome in OUTCOMES}
        yield _counter("knowledge_questions", "Questions of sessions", ["outcome"], outcomes)
        similar = {outcome: knowledge.likenesses[outcome] for outcome in LIKENESSES}
        yield _counter("similar_answers", "Questions similar to an answered one", ["outcome"], similar)
        if knowledge.reranking.name is not None:
            reranked = {outcome: knowledge.reranking.counts[outcome] for outcome in RERANKED}
            yield _counter("knowledge_reranked", "Questions that a reranker was set for", ["outcome"], reranked)
        if knowledge.qdrant is not None:
            waiting = (seen.get("qdrant") or {}).get("waiting", 0)
            yield _gauge(
                "qdrant_up", "Whether Qdrant did what it was last asked", [], {(): int(not knowledge.qdrant.error)}
            )
            yield _gauge("qdrant_waiting", "Changes that Qdrant hasn't been told of", [], {(): waiting})

    def _worker(self) -> Iterator[Metric]:
        engine = self._engine
        opened = sum(task.open for task in engine.tasks.values())
        states = {"open": opened, "opening": len(engine.tasks) - opened}
        yield _gauge("partitions", "Partitions that the group has given to this worker", ["state"], states)
        yield _gauge("ready", "Whether it takes its share of the events", [], {(): int(not self._health.reasons())})


Label = Any
"""The values of a metric's labels: one, or a tuple of them."""


def _values(label: Label) -> list[str]:
    return [str(value) for value in (label if isinstance(label, tuple) else (label,))]


def _counter(name: str, told: str, labels: list[str], values: Any, unit: str = "") -> Metric:
    family = CounterMetricFamily(PREFIX + name, told, labels=labels, unit=unit)
    for label, value in list(values.items()):
        family.add_metric(_values(label), value)
    return family


def _gauge(name: str, told: str, labels: list[str], values: Any, unit: str = "") -> Metric:
    family = GaugeMetricFamily(PREFIX + name, told, labels=labels, unit=unit)
    for label, value in values.items():
        family.add_metric(_values(label), value)
    return family


def _histogram(name: str, told: str, labels: list[str], values: Any, unit: str = "") -> Metric:
    family = HistogramMetricFamily(PREFIX + name, told, labels=labels, unit=unit)
    for label, histogram in values.items():
        family.add_metric(_values(label), _buckets(histogram), histogram.total)
    return family


def _buckets(histogram: Histogram) -> list[Any]:
    found: list[Any] = []
    seen = 0
    bounds = [*map(repr, histogram.bounds), "+Inf"]
    for bound, count, exemplar in zip(bounds, histogram.counts, histogram.exemplars, strict=True):
        seen += count
        if exemplar is None:
            found.append((bound, seen))
        else:
            found.append((bound, seen, Exemplar({"trace_id": exemplar.trace}, exemplar.value, exemplar.at)))
    return found
