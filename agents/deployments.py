"""control -> one judge per model -> deployments -> every worker converges -> model-status."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, Final

from aiokafka.errors import KafkaError
from pydantic import TypeAdapter

from agents.erasures import erase
from agents.trials import Trials, alert_of_end
from core.errors import DecodeError, ModelError, RequestRefusedError
from core.events import Action, Alert, Deployment, ModelName, ModelStatus
from core.topics import ALERTS, CONTROL, DEPLOYMENTS, MODEL_STATUS
from engine.agent import Stream, agent
from engine.app import App
from engine.batch import Slice, current_slice
from engine.engine import Engine
from engine.feed import Feed
from engine.publisher import Publisher
from models.manifest import Manifest
from models.store import ModelStore
from tables.deployments import deployments, judge
from tables.sessions import sessions

log = logging.getLogger(__name__)

FIGURES_S: Final = 1.0
"""Between two reports on a canary or a shadow."""
_MODEL_NAME: Final = TypeAdapter(ModelName)


@agent(CONTROL)
async def decide(stream: Stream[Action]) -> None:
    """Does what control asks for, once, in the partition of the model or session that it is asked for."""
    store = stream.engine.models.store

    async def handle(action: Action) -> None:
        s = current_slice()
        if action.session is not None:
            erase(s, action.session, action)
        else:
            await _decide(s, action, store)

    # One after the other: each is finished before the next begins, so an erasure has nothing of control before it.
    await stream.each(handle, concurrency=1)


async def _decide(s: Slice[Action], action: Action, store: ModelStore) -> None:
    record, source = s.records[0], s.source(0)
    try:
        model = _MODEL_NAME.validate_python((record.key or b"").decode())
    except ValueError:  # pydantic's and UnicodeDecodeError
        raise DecodeError("a control request is keyed by its model's name; this one's key is none") from None
    models = s.task.engine.models
    try:
        versions = await asyncio.to_thread(store.versions, model)
        now = deployments.get(model)
        accepted = judge(model, action, now, versions, record.timestamp)
        known = {*now.versions, now.previous} if now is not None else set()
        for version in accepted.versions:
            if version not in known:
                # Before it is accepted: what can't go live must not displace what workers start with. What has been
                # live before isn't tried again: a way back has to be quick.
                await models.verify(model, version)
    except (RequestRefusedError, ModelError, ValueError) as error:
        log.warning("Control request %s for %s is refused: %s", source, model, error)
        models.refuse(model, str(error))
        s.send(ALERTS, model, refusal(str(source), model, str(error), record.timestamp))
        return
    models.refused.pop(model, None)
    deployments[model] = accepted
    s.send(DEPLOYMENTS, model, accepted)
    if action.figures is not None and now is not None and now.canary is not None and accepted.canary is None:
        models.ended[model, action.action] += 1
        s.send(ALERTS, model, alert_of_end(str(source), action, now, accepted))


def refusal(source: str, model: str, why: str, ts: int) -> Alert:
    """The one alert that answers a refused request."""
    return Alert(
        id=f"{source}/request_refused/{model}/opened",
        kind="request_refused",
        severity="warning",
        state="opened",
        subject=model,
        ts=ts,
        title=why,
        evidence={"request": source},
    )


async def follow(app: App) -> None:
    """Runs a Follower as long as the worker runs."""
    await Follower(app.engine, app.publisher).run()


class Follower:
    """Makes this worker do what the deployments say, and tells model-status what came of it."""

    def __init__(self, engine: Engine, publisher: Publisher) -> None:
        self._engine = engine
        self._publisher = publisher
        self._first: dict[str, Deployment] = {}
        self._loads: set[asyncio.Task[None]] = set()
        self._feed = Feed(engine.connection, DEPLOYMENTS, self._on_deployment)
        self._trials = Trials(engine, publisher)
        engine.models.check(self._want)
        engine.models.watch(lambda model: self._spawn(self._report()))

    async def run(self) -> None:
        """Converges to the newest state before any partition opens, then follows every change."""
        engine = self._engine
        settings = engine.settings
        needed = await asyncio.to_thread(engine.models.needed)
        sessions.configure(needed, settings.session_ttl, max(1, settings.hot_sessions // settings.partitions))
        reading = asyncio.create_task(self._feed.run())
        telling = asyncio.create_task(self._tell_figures())
        trying = asyncio.create_task(self._trials.run())
        try:
            await self._feed.caught_up.wait()
            for deployment in self._first.values():
                await self._converge(deployment)
            if not self._first:
                log.warning(
                    'No model is deployed yet: publish {"active": VERSION} to control, keyed by the model\'s name'
                )
            engine.ready.set()
            for ended in asyncio.as_completed((reading, telling, trying)):
                await ended
        finally:
            for task in (reading, telling, trying):
                task.cancel()

    async def _tell_figures(self) -> None:
        """For ever: while something is on trial, others have to see how it does."""
        while True:
            await asyncio.sleep(FIGURES_S)
            if self._engine.models.on_trial:
                await self._report()

    def _want(self, manifest: Manifest) -> None:
        sessions.want(manifest.session_features)

    async def _on_deployment(self, model: str, deployment: Deployment | None) -> None:
        if deployment is None:
            return
        if not self._engine.ready.is_set() and not self._feed.caught_up.is_set():
            self._first[model] = deployment
        else:
            self._spawn(self._converge(deployment))

    async def _converge(self, deployment: Deployment) -> None:
        try:
            await self._engine.models.converge(deployment)
        except ModelError as error:
            log.error("%s@%s does not go live here: %s", deployment.model, deployment.active, error)
            await self._publish_failure(deployment, error)

    async def _publish_failure(self, deployment: Deployment, error: ModelError) -> None:
        worker = self._engine.name
        subject = f"{deployment.model}@{deployment.active}"
        alert = Alert(
            id=f"deployments/{deployment.model}/{deployment.revision}/load_failed/{worker}/opened",
            kind="load_failed",
            severity="critical",
            state="opened",
            subject=subject,
            ts=int(time.time() * 1e3),
            title=str(error),
            evidence={"worker": worker, "error": type(error).__name__, "revision": deployment.revision},
        )
        try:
            await self._publisher.publish(ALERTS, subject, alert)
        except KafkaError as lost:
            log.error("The alert about %s could not be published: %r", subject, lost)

    async def _report(self) -> None:
        worker = self._engine.name
        status = ModelStatus(worker=worker, models=self._engine.models.status(), ts=int(time.time() * 1e3))
        try:
            await self._publisher.publish(MODEL_STATUS, worker, status)
        except KafkaError as error:
            log.warning("model-status was not published: %r", error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)
