"""Which version answers for each model on this worker, and how the answer changes while traffic flows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from core.errors import ModelError, NoModelError, UnknownModelError
from core.events import Deployment
from models.device import Device
from models.features import SessionFeature
from models.inference import InferenceThread
from models.manifest import Manifest
from models.runtime import Runtime
from models.store import ModelStore
from models.swap import Course, LiveVersion, Stage

log = logging.getLogger(__name__)

REFUSED: Final = 20
"""Refused requests that are remembered."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Who answers for one model. Replaced as a whole, so that a flip is one assignment; canaries and shadows join
    here."""

    active: LiveVersion | None = None

    def answering(self, session: str | None = None) -> LiveVersion | None:
        """The version that answers for a session; the session matters once a canary has its share."""
        return self.active


@dataclass(slots=True)
class _Model:
    """All that this worker knows of one model."""

    wanted: Deployment
    routing: Routing = Routing()
    loading: Course | None = None
    draining: list[LiveVersion] = field(default_factory=list)
    error: str | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class LiveModels:
    """The worker's models. Belongs to one event loop; loading and computing happen on other threads.

    Whoever computes holds the version from building its rows to reading its scores:

        with live.using(name) as version:
            scores = await version.predict(inputs)
    """

    def __init__(self, store: ModelStore, device: Device, thread: InferenceThread, default: str | None = None) -> None:
        """default: the model of events that name none; without it, the only one that is deployed."""
        self.store = store
        self._device = device
        self._thread = thread
        self._default = default
        self._models: dict[str, _Model] = {}
        self._checks: list[Callable[[Manifest], None]] = []
        self._watchers: list[Callable[[str], None]] = []
        self._changed = asyncio.Event()
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
        """Makes the deployment true on this worker: loads its active version beside the old one, verifies it, flips.

        Older revisions than the newest seen do nothing; a version that is overtaken while it loads never answers.
        Work in flight ends on the version that it began on, which is freed then. Raises ModelError when the version
        can't be loaded: the old one stays live, and status() tells the error until a load succeeds.
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
        old = model.routing.active
        if deployment.active is None or (old is not None and old.version == deployment.active):
            new = old if deployment.active else None
        else:
            model.draining = [v for v in model.draining if v.course.stage is Stage.DRAINING]
            warm = (v for v in model.draining if v.version == deployment.active)
            new = next(warm, None) or await self._load(model, deployment.model, deployment.active)
        if model.wanted is not deployment and new is not None and new.course.stage is Stage.VERIFIED:
            new.retire()
            return
        model.error = None
        if new is not old:
            self._flip(model, new)

    async def verify(self, name: str, version: str) -> None:
        """Loads a version as a deployment would, and lets it go. Raises the ModelError that the deployment would meet.

        A version that answers here has passed already.
        """
        live = self.get(name)
        if live is None or live.version != version:
            (await self._runtime(name, version)).close()

    async def _runtime(self, name: str, version: str) -> Runtime:
        folder = await asyncio.to_thread(self.store.fetch, name, version)
        for check in self._checks:
            check(folder.manifest)
        return await Runtime.load(folder, self._device, self._thread)

    async def _load(self, model: _Model, name: str, version: str) -> LiveVersion:
        model.loading = course = Course(f"{name}@{version}")
        try:
            runtime = await self._runtime(name, version)
        except BaseException:
            course.to(Stage.FAILED)
            raise
        finally:
            model.loading = None
        return LiveVersion(runtime.manifest, runtime, course)

    def _flip(self, model: _Model, new: LiveVersion | None) -> None:
        """From here on everybody gets the new one. No await: nobody sees a state between."""
        old = model.routing.active
        if new is not None:
            new.course.to(Stage.ACTIVE)
        model.routing = Routing(new)
        if old is not None:
            old.retire()
        model.draining = [v for v in (*model.draining, old) if v is not None and v.course.stage is Stage.DRAINING]
        log.info("%s answers in place of %s", _who(new), _who(old))

    def resolve(self, name: str | None) -> str:
        """The model that an event means by a name, or by none.

        Raises UnknownModelError for a name that isn't deployed, or for none where several are and no default is set;
        NoModelError when the model is deployed but not live yet, or the event names none and the default, or any
        model, is still to come: such events may wait.
        """
        deployed = self.deployed()
        if name is not None and name not in deployed:
            raise UnknownModelError(name, deployed)
        wanted = name or self._default or (deployed[0] if len(deployed) == 1 else None)
        if wanted is None and deployed:
            raise UnknownModelError(None, deployed)
        if wanted is None:
            raise NoModelError("no model is deployed yet; publish one to control")
        if self.get(wanted) is None:
            raise NoModelError(self._why_not(wanted))
        return wanted

    def get(self, name: str, session: str | None = None) -> LiveVersion | None:
        """The version that answers now, or None. To compute on it, hold it with `using`."""
        model = self._models.get(name)
        return model.routing.answering(session) if model else None

    @contextmanager
    def using(self, name: str | None, session: str | None = None) -> Iterator[LiveVersion]:
        """Holds the version that answers now: it isn't freed before the block ends, whatever is deployed meanwhile.

        Raises what `resolve` raises.
        """
        model = self.resolve(name)
        version = self.get(model, session)
        if version is None:
            raise NoModelError(self._why_not(model))
        version.hold()
        try:
            yield version
        finally:
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
        loaded = (v for model in self._models.values() for v in (model.routing.active, *model.draining) if v)
        return self.store.needed().union(*(version.manifest.session_features for version in loaded))

    def versions(self) -> list[LiveVersion]:
        """Those that answer, and those that still compute for somebody who began on them."""
        held = (v for _, model in sorted(self._models.items()) for v in (model.routing.active, *model.draining))
        return [v for v in held if v is not None and v.course.stage in {Stage.ACTIVE, Stage.DRAINING}]

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
            if model.routing.active is not None:
                self._flip(model, None)

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


def _who(version: LiveVersion | None) -> str:
    return version.course.who if version else "none"


def _status(model: _Model) -> dict[str, Any]:
    active = model.routing.active
    shown = {
        "version": active and active.version,
        "role": active and active.course.stage.value,
        "since": active and active.course.since,
        "sha256": active and active.identity,
        "revision": model.wanted.revision,
        "wanted": model.wanted.active,
        "loading": model.loading and model.loading.who,
        "draining": [v.version for v in model.draining if v.course.stage is Stage.DRAINING] or None,
        "error": model.error,
    }
    return {name: value for name, value in shown.items() if value is not None}
