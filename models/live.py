"""Which version answers for each model on this worker, and how the answer changes while traffic flows."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final

from core.errors import AdapterError, HeldError, ModelError, NoModelError, NoRoomError, UnknownModelError, UsageError
from core.events import Deployment
from models.decoder.adapter import Adapter
from models.decoder.decoder import Decoder
from models.deployed import Deployed, answering
from models.device import Device
from models.embedder.embedder import Embedder
from models.engines import Talking
from models.exchange import Exchange, drained
from models.features import SessionFeature
from models.folder import ModelFolder
from models.inference import InferenceThread
from models.loading import Loader, whole
from models.manifest import Manifest
from models.precision import FP32
from models.reranker.reranker import Reranker
from models.routing import Routing
from models.status import Filling, Late
from models.store import ModelStore
from models.swap import Course, Stage
from models.verifier import Verifier, patience
from models.version import LiveVersion, Load

log = logging.getLogger(__name__)

REFUSED: Final = 20
"""Refused requests that are remembered."""


class LiveModels:
    """The worker's models. Belongs to one event loop; loading and computing happen on other threads.

    Whoever computes holds the versions from building their rows to reading their scores:

        with live.using(name) as version:
            scores = await version.predict(inputs)
    """

    def __init__(
        self,
        store: ModelStore,
        device: Device,
        thread: InferenceThread,
        default: str | None = None,
        aside: InferenceThread | None = None,
        verifier: Verifier | None = None,
        talking: Talking | None = None,
        beside: frozenset[str] = frozenset(),
    ) -> None:
        """default: the model of events that name none; without it, the only one that is deployed. aside: where
        shadows compute; without it, among the others. verifier: tries what is to be loaded first; without it, that
        is tried here. talking: what language models have here. beside: models that no event means that names none."""
        self.store = store
        self.device = device
        """What they run on."""
        self.loader = Loader(store, device, thread, aside, verifier, talking)
        self._thread = thread
        self._default = default
        self._beside = beside
        self._models: dict[str, Deployed] = {}
        self._watchers: list[Callable[[str], None]] = []
        self._late: Callable[[Manifest], Mapping[str, Late]] = lambda manifest: {}
        self._backfill: Callable[[Deployment], Filling | None] = lambda deployment: None
        self._changed = asyncio.Event()
        self.ended = Counter[tuple[str, str]]()
        """(model, verdict) -> canaries that this worker, their judge, has seen end by their limits."""
        self.away: str | None = None
        """Why the store can't be read, while this worker can't begin without it."""
        self.refused: dict[str, str] = {}
        """Model -> why the last request for it was refused by this worker, its judge; gone with the next accepted. The
        newest REFUSED of them."""

    @property
    def verifier(self) -> Verifier | None:
        """What tries candidates."""
        return self.loader.verifier

    def check(self, check: Callable[[Manifest], None]) -> None:
        """Adds a condition that a version must meet before it is loaded: the function raises a ModelError."""
        self.loader.checks.append(check)

    def refuse(self, name: str, why: str) -> None:
        """A request for a model is refused. Names are whatever somebody has asked for, so the oldest are forgotten."""
        self.refused.pop(name, None)
        self.refused[name] = why
        if len(self.refused) > REFUSED:
            del self.refused[next(iter(self.refused))]

    def tell_late(self, late: Callable[[Manifest], Mapping[str, Late]]) -> None:
        """Which session features of a version began later than the sessions themselves: status() tells it."""
        self._late = late

    def tell_backfill(self, progress: Callable[[Deployment], Filling | None]) -> None:
        """How far the backfill of a deployment is here: status() tells it."""
        self._backfill = progress

    def late(self, manifest: Manifest) -> Mapping[str, Late]:
        """The same, of this worker's partitions."""
        return self._late(manifest)

    def watch(self, callback: Callable[[str], None]) -> None:
        """Calls back with a model's name after each change of who answers for it, and after each failed load."""
        self._watchers.append(callback)

    async def converge(self, deployment: Deployment) -> None:
        """Makes the deployment true on this worker: loads what it names beside what is live, verifies it, flips.

        Older revisions than the newest seen do nothing; a version that is overtaken while it loads never answers.
        Work in flight ends on the version that it began on, which is freed then. Raises ModelError when a version
        can't be loaded: the old active one stays, a canary or a shadow is left out, and status() tells the error until
        all of a deployment has been loaded.
        """
        model = self._models.setdefault(deployment.model, Deployed(deployment))
        if deployment.revision < model.wanted.revision:
            return
        if deployment.revision != model.wanted.revision:
            model.spared.clear()
        model.wanted = deployment
        async with model.lock:
            if model.wanted is not deployment:
                return
            try:
                await self._make(model, deployment)
            except ModelError as error:
                model.error = str(error)
                raise
            finally:
                self._tell(deployment.model)

    async def _make(self, model: Deployed, deployment: Deployment) -> None:
        have = {version.load: version for version in model.loaded}
        new: list[LiveVersion] = []
        errors: list[ModelError] = []
        for wanted in deployment.loads:
            if wanted not in have and model.wanted is deployment:
                try:
                    have[wanted] = await self._load(model, deployment, wanted, have)
                    new.append(have[wanted])
                except ModelError as error:
                    errors.append(error)
                if model.exchange is not None:  # its events wait for this one, not for those beside it
                    self._flip(model, self._routing(model, deployment, have))
                    self._tell(deployment.model)
        if model.wanted is not deployment:
            for version in new:
                if version.course.stage is Stage.VERIFIED:
                    version.retire()
            return
        self._flip(model, self._routing(model, deployment, have))
        if errors:
            raise errors[0]
        model.error = None

    def _routing(self, model: Deployed, deployment: Deployment, have: dict[Load, LiveVersion]) -> Routing:
        active = None
        if deployment.active is not None:
            active = have.get((deployment.active, deployment.precision_of(deployment.active)), model.routing.active)
        wanted = set(deployment.loads)
        others = {load[0]: one for load, one in have.items() if load in wanted and one is not active}
        canary = others.get(deployment.canary.version) if deployment.canary and active else None
        return Routing(
            deployment.model,
            active,
            canary,
            deployment.canary.share if deployment.canary and canary else 0.0,
            tuple(others[version] for version in deployment.shadow if active and version in others),
            paired="min_agreement" in deployment.limits,
        )

    def drop(self, name: str) -> None:
        """Of a model that nobody has deployed nothing is left; what is on its way never answers."""
        model = self._models.pop(name, None)
        if model is not None:
            model.wanted = Deployment(model=name, revision=model.wanted.revision, since=0)
            self._flip(model, Routing())
            self._tell(name)

    async def verify(self, name: str, version: str, precision: str = FP32) -> Manifest:
        """Tries a version as a deployment would, and lets it go. Raises the ModelError that the deployment would meet.

        A version that computes here has passed already.
        """
        model = self._models.get(name)
        for loaded in model.loaded if model is not None else ():
            if loaded.load == (version, precision):
                return loaded.manifest
        return await self.loader.tried(name, (version, precision), Course(f"{name}@{version}"))

    def check_room(self, deployment: Deployment) -> None:
        """Raises NoRoomError when not all of a deployment can be held beside the other models on a device like this
        worker's. What hasn't been looked at here counts as nothing."""
        memory, model = self.device.memory, self._models.get(deployment.model)
        needs = {load: self.loader.need_of(deployment.model, load) for load in deployment.loads}
        if not self._fits(sum(needs.values()), model.loaded if model is not None else []):
            told = ", ".join(f"{whole(load)} {need / 1e6:,.1f} MB" for load, need in needs.items())
            raise NoRoomError(
                f"{deployment.model} can't be held as a whole ({told}): {memory.told(sum(needs.values()))}. Unload a "
                "canary or a shadow first, or raise HOMUNCULUS_GPU_MEMORY"
            )

    async def _load(
        self, model: Deployed, deployment: Deployment, load: Load, have: dict[Load, LiveVersion]
    ) -> LiveVersion:
        name, (version, precision) = deployment.model, load
        model.loading = course = Course(f"{name}@{version}")
        self._tell(name)
        try:
            folder = await self.loader.candidate(name, load, course)
            async with self.loader.turn():
                try:
                    share = self.loader.share(folder, precision)
                except NoRoomError as full:
                    return await self._exchanged(model, deployment, folder, course, load, have, full)
                return await self.loader.begun(folder, precision, share, course)
        except BaseException:
            course.to(Stage.FAILED)
            raise
        finally:
            model.loading = None

    async def _exchanged(
        self,
        model: Deployed,
        deployment: Deployment,
        folder: ModelFolder,
        course: Course,
        load: Load,
        have: dict[Load, LiveVersion],
        full: NoRoomError,
    ) -> LiveVersion:
        """Loads what doesn't fit beside what is held, once that has gone which the deployment doesn't want any more.

        Raises NoRoomError where that wouldn't be enough, or didn't go in time; and whatever loading raises, after the
        version that answered has been brought back.
        """
        loader, precision = self.loader, load[1]
        leaving = [version for version in model.loaded if version.load not in deployment.loads]
        others = [version for version in leaving if version is not model.routing.active]
        need = loader.need(folder, precision)
        if self._fits(need, others):
            leaving = others
        elif not self._fits(need, leaving):
            raise full
        elif load in model.spared:
            raise NoRoomError(
                f"{folder.identity} failed when the version before had made room for it, and is tried again when it is "
                f"deployed again: {full}"
            )
        self._flip(model, self._routing(model, deployment, have))
        if model.routing.active in leaving:
            self._hold(model, leaving, course)
        try:
            await drained(leaving)
            share = loader.share(folder, precision)
            return await loader.begun(folder, precision, share, course, within_s=patience(folder))
        except ModelError:
            if model.exchange is not None:
                model.spared.add(load)
                await self._bring_back(model, model.exchange)
            raise

    def _fits(self, need: int, leaving: list[LiveVersion]) -> bool:
        return self.device.memory.fits(need, leaving=sum(version.memory or 0 for version in leaving))

    def _hold(self, model: Deployed, leaving: list[LiveVersion], course: Course) -> None:
        """From here on the model's events wait. No await: nobody sees a state between."""
        before = model.routing
        log.warning("events of %s wait: %s leaves, and %s is loaded then", before.model, answering(before), course.who)
        model.exchange = Exchange(before, [version for version in before if version not in leaving])
        model.routing = Routing(before.model)
        for version in before:
            if version in leaving:
                version.retire()
                model.draining.append(version)
        self._tell(before.model)

    async def _bring_back(self, model: Deployed, exchange: Exchange) -> None:
        """Has the version answer again that made room. It is loaded even where nothing seems to be left: a load that
        hangs may hold that, and there was room for this one before."""
        active = exchange.before.active
        assert active is not None
        who = active.course.who
        if active.course.stage is Stage.UNLOADED:
            try:
                active = await self.loader.begun_again(active)
            except ModelError as error:
                model.exchange = None
                log.error("%s can't be brought back, and nothing answers for %s: %s", who, exchange.before.model, error)
                return
        log.warning("%s is brought back", who)
        self._flip(model, exchange.routing(active))

    def _flip(self, model: Deployed, routing: Routing) -> None:
        """From here on everybody gets the new one. No await: nobody sees a state between."""
        old, kept = model.routing, set(map(id, routing))
        waited = [] if model.exchange is None else model.exchange.kept
        roles = (
            (routing.active, Stage.ACTIVE),
            (routing.canary, Stage.CANARY),
            *((one, Stage.SHADOW) for one in routing.shadows),
        )
        for version, role in roles:
            if version is not None:
                version.begin(role)
        model.routing, model.exchange = routing, None
        gone = [version for version in (*old, *waited) if id(version) not in kept]
        for version in gone:
            version.retire()
        drain = [version for version in (*model.draining, *gone) if version.course.stage is Stage.DRAINING]
        model.draining = list({id(version): version for version in drain}.values())
        if answering(old) != answering(routing):
            log.info("%s in place of %s", answering(routing), answering(old).partition(" ")[0])

    def resolve(self, name: str | None) -> str:
        """The model that an event means by a name, or by none.

        Raises UnknownModelError for a name that isn't deployed, or for none where several are and no default is set;
        NoModelError when the model is deployed but not live yet, or the event names none and the default, or any
        model, is still to come: such events may wait; HeldError when they have to.
        """
        kinds = {model: self._models[model].kind for model in self.deployed()}
        deployed = [model for model, kind in kinds.items() if kind is None or kind.scores]
        if name is not None and name not in deployed:
            raise UnknownModelError(name, deployed)
        # What has never been loaded here may be a model for texts: once another one answers, none is meant by no name.
        deployed = [model for model in deployed if kinds[model] is not None] or deployed
        deployed = [model for model in deployed if model not in self._beside]
        wanted = name or self._default or (deployed[0] if len(deployed) == 1 else None)
        if wanted is None and deployed:
            raise UnknownModelError(None, deployed)
        if wanted is None:
            raise NoModelError("no model is deployed yet; publish one to control")
        if self.get(wanted) is None:
            model = self._models.get(wanted)
            held = model is not None and model.exchange is not None
            raise (HeldError if held else NoModelError)(self._why_not(wanted))
        return wanted

    def decoders(self) -> dict[str, LiveVersion]:
        """The language models that answer, by name; the version's engine is a Decoder. Hold it while it answers."""
        live = ((name, self._models[name].routing.active) for name in self.models())
        return {name: one for name, one in live if one is not None and isinstance(one.engine, Decoder)}

    def adapter(self, name: str) -> LiveVersion:
        """The adapter of that name that is live; the version's engine is an Adapter. Hold it while it is used. Raises
        NoModelError where it is still to come, AdapterError where there is none."""
        version = self.get(name)
        if version is None and name in self.deployed():
            raise NoModelError(f"adapter {name} is deployed, but not live on this worker yet")
        if version is None or not isinstance(version.engine, Adapter):
            raise AdapterError(f"no adapter {name[:100]!r} is deployed")
        return version

    async def forget(self, session: str) -> None:
        """Drops what language models have of a session here; what they make for it ends."""
        for version in self.versions():
            if isinstance(version.engine, Decoder):
                with suppress(UsageError):  # it is being let go, with all that it has
                    await version.engine.forget(session)

    def embedder(self, name: str | None = None) -> Embedder | None:
        """What makes texts vectors now: the model of that name, by default the only embedder, of several the first by
        name. None while there is none. Hold its version with `embedding` to compute on it."""
        version = self._embedder(name)
        return version.engine if version is not None and isinstance(version.engine, Embedder) else None

    def _embedder(self, name: str | None) -> LiveVersion | None:
        for model in [name] if name else self.deployed():
            version = self.get(model)
            if version is not None and isinstance(version.engine, Embedder):
                return version
        return None

    @contextmanager
    def embedding(self, name: str | None = None) -> Iterator[Embedder | None]:
        """Holds the embedder: it isn't freed before the block ends, whatever is deployed meanwhile."""
        version = self._embedder(name)
        with nullcontext() if version is None else version.held():
            yield version.engine if version is not None and isinstance(version.engine, Embedder) else None

    @contextmanager
    def reranking(self, name: str | None) -> Iterator[Reranker | None]:
        """Holds the reranker of that name, as embedding() does. None while it isn't live, or where no name is given."""
        version = self.get(name) if name else None
        with nullcontext() if version is None else version.held():
            yield version.engine if version is not None and isinstance(version.engine, Reranker) else None

    def get(self, name: str) -> LiveVersion | None:
        """The active version now, or None. To compute on it, hold it with `using`."""
        model = self._models.get(name)
        return model.routing.active if model else None

    @contextmanager
    def using(self, name: str | None) -> Iterator[LiveVersion]:
        """Holds the active version: it isn't freed before the block ends, whatever is deployed meanwhile.

        Raises what `resolve` raises.
        """
        with self.routed(name) as routing:
            assert routing.active is not None
            yield routing.active

    @contextmanager
    def routed(self, name: str | None) -> Iterator[Routing]:
        """As using(), with all that computes for the model: there is an active version among it."""
        routing = self._models[self.resolve(name)].routing
        for version in routing:
            version.hold()
        try:
            yield routing
        finally:
            for version in routing:
                version.release()

    async def until_live(self, name: str | None, within_s: float) -> str:
        """Waits until a model answers. Returns its name; raises NoModelError after the limit, in seconds, and
        UnknownModelError at once."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    try:
                        return self.resolve(name)
                    except NoModelError:
                        await self._changed.wait()
        except TimeoutError:
            return self.resolve(name)

    def models(self) -> list[str]:
        """Models that answer, sorted."""
        return sorted(name for name, model in self._models.items() if model.routing.active)

    def deployed(self) -> list[str]:
        """Models that are to answer, sorted, whether or not they do already."""
        return sorted(name for name, model in self._models.items() if model.wanted.active)

    def needed(self) -> frozenset[SessionFeature]:
        """The session features that any version asks for, loaded or in the store. Reads the store: blocking."""
        loaded = (version for model in self._models.values() for version in model.loaded)
        return self.store.needed().union(*(version.manifest.session_features for version in loaded))

    def versions(self) -> list[LiveVersion]:
        """Those that compute, and those that still do for somebody who began on them."""
        return [version for _, model in sorted(self._models.items()) for version in model.loaded]

    @property
    def on_trial(self) -> list[str]:
        """Models with a canary or a shadow, whose figures are worth following."""
        return sorted(name for name, model in self._models.items() if model.routing.canary or model.routing.shadows)

    def deployments(self) -> list[Deployment]:
        """The newest of each model."""
        return [model.wanted for _, model in sorted(self._models.items())]

    def wanted(self, name: str) -> Deployment | None:
        """The newest deployment of a model."""
        model = self._models.get(name)
        return model.wanted if model else None

    @property
    def queued_rows(self) -> int:
        """Rows that wait for the inference thread, or are being computed."""
        return self._thread.load.queued_rows

    def status(self) -> dict[str, dict[str, Any]]:
        """What model-status says of each model: version, role, since, revision; loading, draining, error if any."""
        return {
            name: model.status(self._late, self._backfill(model.wanted)) for name, model in sorted(self._models.items())
        }

    def close(self) -> None:
        """Retires every version; each is freed when the last who holds it lets go."""
        for model in self._models.values():
            self._flip(model, Routing())

    def _why_not(self, name: str) -> str:
        model = self._models.get(name)
        if model is None or model.wanted.active is None:
            return f"model {name!r} isn't deployed yet; publish it to control"
        return f"model {name!r} isn't live on this worker: {model.error or 'its version is being loaded'}"

    def _tell(self, name: str) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        for callback in self._watchers:
            callback(name)
