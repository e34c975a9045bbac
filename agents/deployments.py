"""control -> one judge per model -> deployments -> every worker converges -> model-status."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, Final, Literal

from aiokafka.errors import KafkaError
from pydantic import TypeAdapter

from agents.backfills import Backfills, filled
from agents.commands import DETECTORS, pass_on
from agents.erasures import erase
from agents.late_features import begins_late, late_features
from agents.responses import AUTHOR as DRIFT
from agents.responses import done
from agents.trials import Trials, alert_of_end
from core.errors import DecodeError, ModelError, RequestRefusedError, StoreAwayError
from core.events import Action, Alert, Deployment, ModelName, ModelStatus
from core.topics import ALERTS, CONTROL, DEPLOYMENTS, MODEL_STATUS
from engine.agent import Stream, agent
from engine.app import App
from engine.batch import Slice, current_slice
from engine.engine import Engine
from engine.feed import Feed
from engine.publisher import Publisher, partition_of
from engine.tracing import output_headers
from models.features import SessionFeature
from models.manifest import Manifest
from models.precision import Precision
from models.store import ModelStore
from models.version import Load
from tables.deployments import MOST_REVISION, deployments, judge
from tables.sessions import sessions

log = logging.getLogger(__name__)

FIGURES_S: Final = 1.0
"""Between two reports on a canary or a shadow."""
RETRY_S: Final = 1.0
"""Until what could not be loaded is tried again. Twice as long each time:"""
MOST_RETRY_S: Final = 600.0
"""a version that will never load costs this worker a load every ten minutes."""
FOLLOWER: Final = "deployments"
"""Who asks for what stands in a deployment's place to be mended."""
LOOK_AGAIN_S: Final = 2.0
"""Until a deployment that its judge doesn't know is looked at again."""
MOST_AWAY_S: Final = 30.0
"""Between two looks at a store that a start waits for."""
_MODEL_NAME: Final = TypeAdapter(ModelName)


@agent(CONTROL)
async def decide(stream: Stream[Action]) -> None:
    """Does what control asks for, once, in the partition of the model or session that it is asked for."""
    store = stream.engine.models.store

    async def handle(action: Action) -> None:
        s = current_slice()
        if action.session is not None:
            erase(s, action.session, action)
            await stream.engine.models.forget(action.session)
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

    now: Deployment | None = None

    def offered(version: str) -> dict[str, Precision]:
        return store.manifest(model, version).offered

    try:
        now = deployments.get(model)
        if action.action in DETECTORS:
            pass_on(s, model, action, now.active if now is not None else None)
            return
        again = action.action == "republish"  # which needs no store
        versions = [] if again else await asyncio.to_thread(store.versions, model)
        accepted = await asyncio.to_thread(judge, model, action, now, versions, record.timestamp, offered)
        known = _known(now)
        # Before it is accepted: what can't go live must not displace what workers start with. What has been live before
        # isn't tried again: a way back has to be quick.
        wanted = (*accepted.loads, *_fallback(accepted))
        tried = [await models.verify(model, *load) for load in wanted if load not in known]
        if not known.issuperset(accepted.loads):
            models.check_room(accepted)
        if action.action == "backfill":
            theirs = [load for load in accepted.loads if action.version in (None, load[0])]
            accepted = filled(accepted, [await models.verify(model, *load) for load in theirs])
    except (RequestRefusedError, ModelError, ValueError) as error:
        if action.action == "republish" and action.author == FOLLOWER and now is None:
            # What stands under this key is nobody's: compaction takes it away.
            s.emit(DEPLOYMENTS, [model.encode()], [None], output_headers(s.topic, s.partition, s.records, s.parents))
            return
        log.warning("Control request %s for %s is refused: %s", source, model, error)
        models.refuse(model, str(error))
        s.send(ALERTS, model, refusal(str(source), model, str(error), record.timestamp))
        return
    models.refused.pop(model, None)
    deployments[model] = accepted
    s.send(DEPLOYMENTS, model, accepted)
    for manifest in tried:
        if late := models.late(manifest):
            s.send(ALERTS, manifest.identity, begins_late(str(source), manifest.identity, late, record.timestamp))
    if action.author == DRIFT and action.alert is not None and now is not None:
        done(s, model, action, now, accepted)
    if action.figures is not None and now is not None and now.canary is not None and accepted.canary is None:
        models.ended[model, action.action] += 1
        s.send(ALERTS, model, alert_of_end(str(source), action, now, accepted))


def _known(now: Deployment | None) -> set[Load]:
    """What a deployment has loaded, and what it had before."""
    if now is None:
        return set()
    before = () if now.previous is None else ((now.previous, now.precision_of(now.previous)),)
    return {*now.loads, *before, *_fallback(now)}


def _fallback(deployment: Deployment) -> tuple[Load, ...]:
    """What it would load after a drift: it has to be quick then."""
    version = deployment.fallback
    return () if version is None else ((version, deployment.precision_of(version)),)


def _is_model(key: str) -> bool:
    try:
        _MODEL_NAME.validate_python(key)
    except ValueError:
        return False
    return True


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
        self._spawned: set[asyncio.Task[None]] = set()
        self._feed = Feed(engine.connection, DEPLOYMENTS, self._on_deployment, self._on_foreign)
        self._displaced: set[str] = set()
        """Models whose newest record on `deployments` is not their deployment."""
        self._trials = Trials(engine, publisher)
        self._backfills = Backfills(engine)
        engine.models.check(self._want)
        engine.models.tell_late(lambda manifest: late_features(engine, manifest))
        engine.models.tell_backfill(self._backfills.progress)
        engine.models.watch(lambda model: self._spawn(self._report()))

    async def run(self) -> None:
        """Converges to the newest state before any partition opens, then follows every change."""
        engine = self._engine
        settings = engine.settings
        needed = await self._needed()
        sessions.configure(needed, settings.session_ttl, max(1, settings.hot_sessions // settings.partitions))
        reading = asyncio.create_task(self._feed.run())
        telling = asyncio.create_task(self._tell_figures())
        trying = asyncio.create_task(self._trials.run())
        filling = asyncio.create_task(self._backfills.run())
        try:
            await self._feed.caught_up.wait()
            for deployment in self._first.values():
                await self._converge(deployment)
            if not self._first:
                log.warning(
                    'No model is deployed yet: publish {"active": VERSION} to control, keyed by the model\'s name'
                )
            engine.ready.set()
            for model in sorted(self._displaced):
                await self._ask_again(model)
            for ended in asyncio.as_completed((reading, telling, trying, filling)):
                await ended
        finally:
            for task in (reading, telling, trying, filling, *self._spawned):
                task.cancel()

    async def _needed(self) -> frozenset[SessionFeature]:
        """What sessions have to keep, once the store can be read: a session that begins without a feature would lack
        what it missed for good, so until then nothing is worked on."""
        models, pause = self._engine.models, RETRY_S
        while True:
            try:
                needed = await asyncio.to_thread(models.needed)
            except StoreAwayError as error:
                models.away = str(error)
                log.error("The worker waits for its model store, of which nothing is cached: %s", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, MOST_AWAY_S)
            else:
                models.away = None
                return needed

    async def _tell_figures(self) -> None:
        """For ever: while something is on trial, others have to see how it does; and what a feature has to begin with
        comes when it comes."""
        models, told = self._engine.models, dict[str, Any]()
        while True:
            await asyncio.sleep(FIGURES_S)
            now: dict[str, Any] = {one.identity: models.late(one.manifest) for one in models.versions()}
            now["backfill"] = self._backfills.all()
            if models.on_trial or now != told:
                told = now
                await self._report()

    def _want(self, manifest: Manifest) -> None:
        sessions.want(manifest.session_features)

    async def _on_deployment(self, key: str, deployment: Deployment | None) -> None:
        if deployment is None:
            await self._on_deleted(key)
        elif deployment.model != key:
            await self._on_foreign(key, f"it is a deployment of {deployment.model}")
        elif deployment.revision > MOST_REVISION:
            await self._on_foreign(key, f"its revision {deployment.revision} can't be")
        else:
            if self._judged_otherwise(deployment):
                self._spawn(self._look_again(deployment, str(self._feed.place)))
            self._displaced.discard(key)
            if not self._engine.ready.is_set() and not self._feed.caught_up.is_set():
                self._first[key] = deployment
            else:
                self._spawn(self._converge(deployment))

    def _judged_otherwise(self, deployment: Deployment) -> bool:
        """Whether this worker judges the model, and has decided otherwise: somebody else has written it."""
        engine, key = self._engine, deployment.model.encode()
        task = engine.tasks.get(partition_of(key, engine.settings.partitions))
        if task is None or not task.open or not self._feed.caught_up.is_set():
            return False
        raw = task.shard(deployments.name).finished(key)
        ours = None if raw is None else deployments.decode(raw)
        return ours is None or (deployment.revision >= ours.revision and deployment != ours)

    async def _look_again(self, deployment: Deployment, source: str) -> None:
        """Who has just lost the model's partition knows less than its new judge."""
        await asyncio.sleep(LOOK_AGAIN_S)
        if self._judged_otherwise(deployment) and self._engine.models.wanted(deployment.model) in (deployment, None):
            await self._tell_foreign(source, deployment.model, "its judge has decided otherwise", deployment.revision)

    async def _on_deleted(self, key: str) -> None:
        """A model's deployment that is gone is written again; of what never was one nothing is left."""
        wanted = self._engine.models.wanted(key)
        task = self._engine.tasks.get(partition_of(key.encode(), self._engine.settings.partitions))
        if wanted is None and key not in self._first:
            self._displaced.discard(key)
        elif task is not None and task.open and task.shard(deployments.name).finished(key.encode()) is None:
            self._displaced.discard(key)
            self._engine.models.drop(key)
        else:
            await self._on_foreign(key, "it was deleted")

    async def _on_foreign(self, key: str, why: str) -> None:
        """Compaction leaves the newest record of a key alone, so whoever starts later would know no deployment."""
        asked = key in self._displaced
        if _is_model(key):
            self._displaced.add(key)
        if self._feed.caught_up.is_set():
            await self._tell_foreign(str(self._feed.place), key, why, None, ask=key in self._displaced and not asked)

    async def _tell_foreign(self, source: str, key: str, why: str, beyond: int | None, *, ask: bool = True) -> None:
        """beyond: the revision that workers follow by now, if they do."""
        subject = key[:100]
        title = f"{source} is not what is deployed of {subject!r} ({why}): it is written again"
        log.error("%s", title)
        await self._alert(f"{source}/deployment_displaced/{subject}", "deployment_displaced", "opened", subject, title)
        if ask:
            await self._ask_again(key, beyond)

    async def _ask_again(self, model: str, beyond: int | None = None) -> None:
        """Has the judge write what is deployed once more: a copy of our own could come after something newer."""
        try:
            await self._publisher.publish(CONTROL, model, Action(action="republish", author=FOLLOWER, based_on=beyond))
        except KafkaError as error:
            log.error('%s has to be deployed again, or {"action": "republish"} be sent: %r', model, error)

    async def _converge(self, deployment: Deployment) -> None:
        """One attempt. A failure is told, and what failed is tried again as long as nothing newer is wanted."""
        try:
            await self._engine.models.converge(deployment)
        except ModelError as error:
            log.error("%s@%s does not go live here: %s", deployment.model, deployment.active, error)
            self._spawn(self._try_again(deployment))
            evidence = {"error": type(error).__name__, "revision": deployment.revision}
            await self._tell_load(deployment, "opened", str(error), evidence)

    async def _try_again(self, deployment: Deployment) -> None:
        models, model, revision = self._engine.models, deployment.model, deployment.revision
        pause, title = RETRY_S, ""
        while not title:
            await asyncio.sleep(pause)
            pause = min(2 * pause, MOST_RETRY_S)
            wanted = models.wanted(model)
            if wanted is None or wanted.revision != revision:
                title = f"revision {revision} of {model} is no longer wanted"
                continue
            try:
                await models.converge(wanted)
                title = f"revision {revision} of {model} could be loaded here after all"
            except ModelError as error:
                log.debug("%s still does not go live here: %s", model, error)
        log.info("%s", title)
        await self._tell_load(deployment, "resolved", title, {"revision": revision})

    async def _tell_load(
        self, deployment: Deployment, state: Literal["opened", "resolved"], title: str, evidence: dict[str, Any]
    ) -> None:
        worker = self._engine.name
        source = f"deployments/{deployment.model}/{deployment.revision}/load_failed/{worker}"
        subject = f"{deployment.model}@{deployment.active}"
        await self._alert(source, "load_failed", state, subject, title, worker=worker, **evidence)

    async def _alert(
        self, source: str, kind: str, state: Literal["opened", "resolved"], subject: str, title: str, **evidence: Any
    ) -> None:
        alert = Alert(
            id=f"{source}/{state}",
            kind=kind,
            severity="critical",
            state=state,
            subject=subject,
            ts=int(time.time() * 1e3),
            title=title,
            evidence=evidence,
        )
        try:
            await self._publisher.publish(ALERTS, subject, alert)
        except KafkaError as lost:
            log.error("The alert about %s could not be published: %r", subject, lost)

    async def _report(self) -> None:
        worker = self._engine.name
        models = self._engine.models
        status = ModelStatus(
            worker=worker,
            models=models.status(),
            ts=int(time.time() * 1e3),
            device=models.device.runs_on,
            fallback=models.device.fallback,
        )
        try:
            await self._publisher.publish(MODEL_STATUS, worker, status)
        except KafkaError as error:
            log.warning("model-status was not published: %r", error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
