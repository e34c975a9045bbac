"""The Faust application, made from the settings and from what agents, tables and pages have declared."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, NoReturn

import faust
from aiokafka.errors import KafkaError
from faust.types import AppT
from mode import loop as mode_loop

from core.errors import FatalError, HomunculusError, SettingsError, UsageError
from core.settings import Settings
from core.topics import ALL, TopicSpec, changelog
from engine import bulk, logs, rights, wire
from engine.admin import ensure_topics
from engine.agent import Agent, declared
from engine.assignor import TaskAssignor
from engine.batch import Slice
from engine.boot import Boot, Tables, Worker
from engine.changelog import POSITIONS
from engine.clock import tick
from engine.connection import Connection, client_options, connect, credentials
from engine.embedded import EmbeddedBroker
from engine.engine import Engine
from engine.outage import Outage
from engine.publisher import Publisher
from engine.scrubbing import Scrubber
from engine.table import Table
from engine.timed import TimedTable
from engine.transport import Transport
from engine.watchdog import Watchdog
from models.decoder.decoder import Sizes
from models.device import Device
from models.engines import Talking
from models.inference import InferenceThread
from models.live import LiveModels
from models.store import ModelStore
from models.verifier import Verifier

if TYPE_CHECKING:
    from engine.spans import Tracer

log = logging.getLogger(__name__)

SHADOW_NICE: Final = 10
"""By how much versions that answer for nobody let others have the processor."""

FILES: Final = 65_536
"""Open files that a worker asks for, at most."""
START_STATUS: Final = 1
"""Exit status of a worker that can't start."""

Background = Callable[["App"], Coroutine[Any, Any, None]]
"""What runs beside the agents, from the moment that the broker is reached; its error ends the process."""


class Raw(faust.Schema):  # type: ignore[type-arg]  # not subscriptable at run time
    """Leaves keys and values to us: a message's value is a list of slices."""

    def loads_key(self, app: AppT, message: Any, **options: Any) -> Any:
        """The key as it is."""
        return message.key

    def loads_value(self, app: AppT, message: Any, **options: Any) -> Any:
        """The value as it is."""
        return message.value


class App(faust.App):
    """Faust's App with our engine below it."""

    BootStrategy = Boot

    def __init__(
        self, settings: Settings, models: LiveModels, agents: Iterable[Agent[Any]], background: Iterable[Background]
    ) -> None:
        self.settings = settings
        self.engine = Engine(settings, Table.declared, models)
        self._beside = tuple(background)
        self._embedded = EmbeddedBroker() if settings.embedded else None
        self._outage = Outage()
        self._topics = {spec.name: spec for spec in ALL}
        self._written: set[str] = set()
        self._background: list[asyncio.Task[None]] = []
        self._publisher: Publisher | None = None
        broker = f"kafka://{self._embedded.bootstrap}" if self._embedded else settings.broker
        self._broker = broker
        bulk.install()
        wire.install()
        bootstrap, security = client_options(broker, settings)
        super().__init__(
            settings.app_id,
            broker=[f"kafka://{server}" for server in bootstrap.split(",")],
            broker_credentials=credentials(security),
            env_prefix="HOMUNCULUS_FAUST_",  # else WEB_BIND in the environment would win over what we say
            datadir=str(settings.data_dir / "faust"),
            topic_partitions=settings.partitions,
            topic_allow_declare=False,
            topic_disable_leader=True,
            store="memory://",
            table_standby_replicas=settings.standbys,
            stream_wait_empty=False,
            broker_session_timeout=settings.session_timeout,
            broker_heartbeat_interval=settings.session_timeout / 4,
            broker_rebalance_timeout=settings.session_timeout,
            broker_request_timeout=max(30.0, settings.session_timeout + 1),
            web_bind=str(settings.web_bind),
            web_port=settings.web_port,
            web_host=f"[{settings.web_bind}]" if settings.web_bind.version == 6 else str(settings.web_bind),
            logging_config=logs.config(settings, self._outage),
            PartitionAssignor=TaskAssignor,
            TableManager=Tables,
            Worker=Worker,
        )
        self.transport = Transport(self.conf.broker_consumer, self)
        for agent in agents:
            self._declare(agent)
        self.engine.outputs = frozenset(self._topics)

    def _declare(self, agent: Agent[Any]) -> None:
        name = self.engine.topic_name(agent.topic)
        self._topics |= {spec.name: spec for spec in (agent.topic, *agent.outputs)}
        self.engine.sources.add(name)
        self.engine.has_early |= agent.early
        if agent.event_time:
            self.engine.timed_sources.add(name)
        if agent.rest_s:
            self.engine.rests[name] = agent.rest_s
        self._written |= {self.engine.topic_name(spec) for spec in agent.outputs}
        channel = self.topic(name, schema=Raw(), acks=False)

        async def run(stream: Any) -> None:
            async def polls() -> AsyncIterator[list[Slice[Any]]]:
                async for slices in stream:
                    yield slices

            await agent.run(self.engine, polls())

        # Faust's own decorator also notes for its scanner where it was used: that looks up the file of every module.
        make: Any = self.conf.Agent
        made = make(
            run, name=agent.name, app=self, channel=channel, help=agent.body.__doc__, on_error=self._on_agent_error
        )
        self.agents[made.name] = made
        self.topics.beacon.add(made)

    @property
    def publisher(self) -> Publisher:
        """For records of the worker itself; known once the worker has started."""
        assert self._publisher is not None
        return self._publisher

    # -- what Faust has and we don't ----------------------------------------------------------------------------------

    def Table(self, *args: Any, **options: Any) -> NoReturn:  # noqa: N802  Faust's name
        """Refused: Faust's tables write before the commit and lose or repeat work at a crash."""
        raise UsageError(
            "app.Table is Faust's, whose state is neither exact nor fenced: declare a subclass of engine.table.Table "
            "(see docs/faust.md)"
        )

    GlobalTable = SetTable = SetGlobalTable = Table

    def agent(self, *args: Any, **options: Any) -> NoReturn:
        """Refused: events would be finished before their state is. engine.agent.agent declares agents here."""
        raise UsageError(
            "app.agent is Faust's, whose events would be finished before their state is: declare the agent with "
            "engine.agent.agent(TOPIC) (see docs/faust.md)"
        )

    def _init_fixups(self) -> list[Any]:
        """None. Faust's only one is Django's, found by reading what each installed package declares."""
        return []

    # -- starting and stopping ----------------------------------------------------------------------------------------

    async def on_first_start(self) -> None:
        """Broker, topics and models; whatever is wrong ends the process with a sentence and a status."""
        allow_files()
        try:
            self.engine.claim_folder()
            await self._begin()
        except (HomunculusError, KafkaError, OSError) as error:
            log.critical("The worker doesn't start: %s", error)
            if self._embedded:
                await self._embedded.stop()
            logging.shutdown()
            os._exit(START_STATUS)

    async def _begin(self) -> None:
        settings, engine = self.settings, self.engine
        self._check_bind()
        await self.on_started_init_web_server()  # before the broker is there: health tells what is waited for
        engine.name = settings.worker_id or f"{socket.gethostname()}-{self.conf.web_port}"  # the port that it has
        engine.traces = tracer(settings, engine.name)
        if self._embedded:
            await self._embedded.start()
            self._watch(self._broker_ended(self._embedded))
        engine.connection = await connect(settings, self._broker)
        self._watch(self._outage.watch(engine.connection))
        changelogs = [changelog(settings.app_id, table) for table in (*engine.tables, POSITIONS)]
        topics = self._topics | {spec.name: spec for spec in changelogs}
        needed = self.needed_rights(engine.connection, topics.values())
        await rights.check(engine.connection, needed)
        if await ensure_topics(engine.connection.bootstrap, topics.values(), settings, engine.connection.security):
            await rights.check(engine.connection, rights.Needed(needed.topics))  # those that are new can be asked now
        self._publisher = Publisher(engine.connection)
        await self._publisher.start()
        for work in self._beside:
            self._watch(work(self))
        self._watch(engine.gate.follow(engine.connection))
        self._watch(engine.committer.run())
        self._watch(engine.standbys.run())
        self._watch(Scrubber(engine).run())
        self._watch(Watchdog(engine).run())
        self._watch(engine.pulse.run())
        if any(isinstance(table, TimedTable) for table in engine.tables.values()):
            self._watch(tick(engine))
        _calm_collector()
        engine.profile.start()

    def needed_rights(self, connection: Connection, topics: Iterable[TopicSpec[Any]]) -> rights.Needed:
        """What the broker must let this worker do."""
        return rights.of_worker(topics, self.engine.sources, self._written, connection)

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._watched)
        self._background.append(task)

    def _watched(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.engine.fatal(error)

    async def _broker_ended(self, broker: EmbeddedBroker) -> None:
        status = await broker.ended()
        raise FatalError(f"the embedded broker has ended with status {status}: nothing it held is left")

    def _check_bind(self) -> None:
        """On the effective configuration: Faust reads its own command line and environment after ours."""
        bind = str(self.conf.web_bind or "")
        if self.conf.web_enabled and not _loopback(bind) and self.settings.web_token is None:
            raise SettingsError(
                f"the web views would listen on {bind or 'every address'} without a token: set HOMUNCULUS_WEB_TOKEN, "
                "or bind to 127.0.0.1"
            )

    async def on_shutdown(self) -> None:
        """After the consumer has left the group: nothing of ours is left behind."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._publisher is not None:
            await self._publisher.stop()
        if self.engine.models.verifier is not None:
            await self.engine.models.verifier.close()
        self.engine.models.close()
        if self.engine.traces is not None:
            await self.engine.traces.close()
        if self._embedded:
            await self._embedded.stop()
        self.engine.profile.write()


def create_app(settings: Settings, background: Iterable[Background] = ()) -> App:
    """The application of every agent and table that has been imported. Raises SettingsError."""
    mode_loop.use("uvloop")
    models = LiveModels(
        ModelStore(settings.model_store, cache=settings.data_dir / ".models"),  # no APP_ID begins with a dot
        Device.of(settings.device, memory=settings.gpu_memory),
        InferenceThread(),
        settings.default_model,
        aside=InferenceThread("shadow", nice=SHADOW_NICE),
        verifier=Verifier(settings.device),
        talking=Talking(
            Sizes(settings.chat_slots, settings.chat_context, threads=settings.chat_threads),
            settings.data_dir / ".kv" / (settings.worker_id or "worker"),
            settings.chat_disk,
        ),
        beside=frozenset(filter(None, [settings.intent_model, settings.reranker_model])),
    )
    return App(settings, models, declared, background)


def tracer(settings: Settings, worker: str) -> Tracer | None:
    """What makes spans, where the settings ask for traces: else OpenTelemetry isn't even imported. Raises SettingsError
    when it is missing."""
    if settings.otlp_endpoint is None:
        return None
    try:
        from engine.spans import Tracer

        return Tracer.to_collector(settings, worker)
    except ImportError as error:
        raise SettingsError(
            f"HOMUNCULUS_OTLP_ENDPOINT is set, but the package {error.name} is missing: install opentelemetry-sdk and "
            "opentelemetry-exporter-otlp-proto-http, or -grpc (the extra `otel` has them)"
        ) from error


def allow_files() -> None:
    """Asks the system for as many open files as it lets a process have: a partition holds about ten, and many systems
    begin with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _calm_collector() -> None:
    """What lives since the start is never garbage, and batches die young: full collections only cost latency."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _loopback(bind: str) -> bool:
    if bind == "localhost":
        return True
    try:
        return ip_address(bind).is_loopback
    except ValueError:
        return False
