"""Which version answers for each model on this worker, and how the answer changes while traffic flows."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from core.errors import ModelError, NoModelError, UnknownModelError
from core.events import Deployment
from models.device import Device
from models.embedder.embedder import Embedder
from models.features import SessionFeature
from models.folder import ModelFolder
from models.inference import InferenceThread
from models.loading import loaded
from models.manifest import Kind, Manifest
from models.routing import Routing
from models.runtime import Runtime
from models.store import ModelStore
from models.swap import Course, Stage
from models.verifier import Verifier
from models.version import LiveVersion

log = logging.getLogger(__name__)

REFUSED: Final = 20
"""Refused requests that are remembered."""


@dataclass(slots=True)
class _Model:
    """All that this worker knows of one model."""

    wanted: Deployment
    routing: Routing = field(default_factory=Routing)
    loading: Course | None = None
    draining: list[LiveVersion] = field(default_factory=list)

    @property
    def kind(self) -> Kind | None:
        """None before the first of its versions has been loaded here."""
        return next((version.manifest.kind for version in self.loaded), None)

    @property
    def loaded(self) -> list[LiveVersion]:
        """Those that compute, and those that drain."""
        drain = [version for version in self.draining if version.course.stage is Stage.DRAINING]
        return [*self.routing, *drain]

    error: str | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


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
    ) -> None:
        """default: the model of events that name none; without it, the only one that is deployed. aside: where
        shadows compute; without it, among the others. verifier: tries what is to be loaded first; without it, that
        is tried here."""
        self.store = store
        self.verifier = verifier
        self._device = device
        self._thread = thread
        self._aside = aside
        self._texts: InferenceThread | None = None
        """Where questions are embedded: in the way of no score."""
        self._default = default
        self._models: dict[str, _Model] = {}
        self._checks: list[Callable[[Manifest], None]] = []
        self._watchers: list[Callable[[str], None]] = []
        self._changed = asyncio.Event()
        self.ended = Counter[tuple[str, str]]()
        """(model, verdict) -> canaries that this worker, their judge, has seen end by their limits."""
        self.refused: dict[str, str] = {}
        """Model -> why the last request for it was refused by this worker, its judge; gone with the next accepted. The
        newest REFUSED of them."""

    def check(self, check: Callable[[Manifest], None]) -> None:
        """Adds a condition that a version must meet before it is loaded: the function raises a ModelError."""
        self._checks.append(check)

    def refuse(self, name: str, why: str) -> None:
        """A request for a model is refused. Names are whatever somebody has asked for, so the oldest are forgotten."""
        self.refused.pop(name, None)
        self.refused[name] = why
        if len(self.refused) > REFUSED:
            del self.refused[next(iter(self.refused))]

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
        model = self._models.setdefault(deployment.model, _Model(deployment))
        if deployment.revision < model.wanted.revision:
            return
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

    async def _make(self, model: _Model, deployment: Deployment) -> None:
        have = {version.version: version for version in model.loaded}
        new: list[LiveVersion] = []
        errors: list[ModelError] = []
        for wanted in deployment.versions:
            if wanted not in have and model.wanted is deployment:
                try:
                    have[wanted] = await self._load(model, deployment.model, wanted)
                    new.append(have[wanted])
                except ModelError as error:
                    errors.append(error)
        if model.wanted is not deployment:
            for version in new:
                version.retire()
            return
        self._flip(model, self._routing(model, deployment, have))
        if errors:
            raise errors[0]
        model.error = None

    def _routing(self, model: _Model, deployment: Deployment, have: dict[str, LiveVersion]) -> Routing:
        active = None
        if deployment.active is not None:
            active = have.get(deployment.active, model.routing.active)
        others = {version: one for version, one in have.items() if one is not active}
        canary = others.get(deployment.canary.version) if deployment.canary and active else None
        return Routing(
            deployment.model,
            active,
            canary,
            deployment.canary.share if deployment.canary and canary else 0.0,
            tuple(others[version] for version in deployment.shadow if active and version in others),
            paired="min_agreement" in deployment.limits,
        )

    async def verify(self, name: str, version: str) -> None:
        """Tries a version as a deployment would, and lets it go. Raises the ModelError that the deployment would meet.

        A version that computes here has passed already.
        """
        model = self._models.get(name)
        if model is not None and any(loaded.version == version for loaded in model.loaded):
            return
        course = Course(f"{name}@{version}")
        if self.verifier is not None:
            await self._candidate(name, version, course)
        else:
            (await self._runtime(name, version, course)).close()

    async def _candidate(self, name: str, version: str, course: Course) -> ModelFolder:
        folder = await asyncio.to_thread(self.store.fetch, name, version, course.downloaded)
        for check in self._checks:
            check(folder.manifest)
        course.to(Stage.VERIFYING)
        if self.verifier is not None:
            await self.verifier.check(folder, hurry=not self._thread.load.joined)
        return folder

    async def _runtime(self, name: str, version: str, course: Course) -> Runtime | Embedder:
        folder = await self._candidate(name, version, course)
        if folder.manifest.kind is Kind.EMBEDDER and self._texts is None:
            self._texts = InferenceThread("texts")
        thread = self._thread if folder.manifest.kind.scores else self._texts or self._thread
        return await loaded(folder, self._device, thread, self._aside, lambda: course.to(Stage.WARMING))

    async def _load(self, model: _Model, name: str, version: str) -> LiveVersion:
        model.loading = course = Course(f"{name}@{version}")
        self._tell(name)
        try:
            runtime = await self._runtime(name, version, course)
        except BaseException:
            course.to(Stage.FAILED)
            raise
        finally:
            model.loading = None
        return LiveVersion(runtime.manifest, runtime, course)

    def _flip(self, model: _Model, routing: Routing) -> None:
        """From here on everybody gets the new one. No await: nobody sees a state between."""
        old, kept = model.routing, set(map(id, routing))
        roles = (
            (routing.active, Stage.ACTIVE),
            (routing.canary, Stage.CANARY),
            *((one, Stage.SHADOW) for one in routing.shadows),
        )
        for version, role in roles:
            if version is not None:
                version.begin(role)
        model.routing = routing
        gone = [version for version in old if id(version) not in kept]
        for version in gone:
            version.retire()
        drain = [version for version in (*model.draining, *gone) if version.course.stage is Stage.DRAINING]
        model.draining = list({id(version): version for version in drain}.values())
        if _who(old) != _who(routing):
            log.info("%s in place of %s", _who(routing), _who(old).partition(" ")[0])

    def resolve(self, name: str | None) -> str:
        """The model that an event means by a name, or by none.

        Raises UnknownModelError for a name that isn't deployed, or for none where several are and no default is set;
        NoModelError when the model is deployed but not live yet, or the event names none and the default, or any
        model, is still to come: such events may wait.
        """
        kinds = {model: self._models[model].kind for model in self.deployed()}
        deployed = [model for model, kind in kinds.items() if kind is None or kind.scores]
        if name is not None and name not in deployed:
            raise UnknownModelError(name, deployed)
        # What has never been loaded here may be a model for texts: once another one answers, none is meant by no name.
        deployed = [model for model in deployed if kinds[model] is not None] or deployed
        wanted = name or self._default or (deployed[0] if len(deployed) == 1 else None)
        if wanted is None and deployed:
            raise UnknownModelError(None, deployed)
        if wanted is None:
            raise NoModelError("no model is deployed yet; publish one to control")
        if self.get(wanted) is None:
            raise NoModelError(self._why_not(wanted))
        return wanted

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
        if version is None:
            yield None
            return
        version.hold()
        try:
            yield version.engine if isinstance(version.engine, Embedder) else None
        finally:
            version.release()

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
        return {name: _status(model) for name, model in sorted(self._models.items())}

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


def _who(routing: Routing) -> str:
    if routing.active is None:
        return "none answers"
    said = f"{routing.active.course.who} answers"
    if routing.canary is not None:
        said += f", {routing.canary.version} for {routing.share:.3g} of the sessions"
    return said + "".join(f", {shadow.version} in its shadow" for shadow in routing.shadows)


def _status(model: _Model) -> dict[str, Any]:
    routing, loading, deployment = model.routing, model.loading, model.wanted
    shown = {
        **(_told(routing.active) if routing.active else {}),
        "canary": routing.canary and _told(routing.canary) | {"share": routing.share},
        "shadow": [_told(shadow) for shadow in routing.shadows] or None,
        "revision": deployment.revision,
        "wanted": deployment.active,
        "frozen": deployment.frozen or None,
        "loading": loading and _coming(loading),
        "draining": [v.version for v in model.draining if v.course.stage is Stage.DRAINING] or None,
        "error": model.error,
    }
    return {name: value for name, value in shown.items() if value is not None}


def _coming(course: Course) -> dict[str, Any]:
    shown = {"version": course.who.partition("@")[2], "stage": course.stage.value, "share": course.share}
    return {name: value for name, value in shown.items() if value is not None}


def _told(version: LiveVersion) -> dict[str, Any]:
    course = version.course
    return {
        "version": version.version,
        "role": course.stage.value,
        "since": course.since,
        "sha256": version.identity,
        "figures": msgspec.to_builtins(version.figures),
    }
