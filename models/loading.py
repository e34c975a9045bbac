"""How a version comes from the store into memory: fetched, tried, given its share of the device, loaded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from core.errors import NoRoomError, UnsafeModelError
from models.budget import Share
from models.decoder.adapter import Adapter
from models.decoder.decoder import Decoder
from models.device import Device
from models.embedder.embedder import Embedder
from models.embedder.feed import BATCH
from models.engines import Talking
from models.engines import load as begin
from models.folder import ModelFolder
from models.inference import InferenceThread
from models.manifest import Kind, Manifest
from models.precision import FP32
from models.reranker.reranker import Reranker
from models.runtime import Runtime
from models.store import ModelStore
from models.swap import Course, Stage
from models.verifier import Place, Verifier, patience
from models.version import LiveVersion, Load

log = logging.getLogger(__name__)

NICE: Final = 5
"""How much the thread of rerankers lets others pass: as a decoder's."""


class Loader:
    """One worker's way of doing it. Belongs to one event loop; what takes time is done on other threads."""

    def __init__(
        self,
        store: ModelStore,
        device: Device,
        thread: InferenceThread,
        aside: InferenceThread | None = None,
        verifier: Verifier | None = None,
        talking: Talking | None = None,
    ) -> None:
        """aside: where shadows compute. verifier: tries what is to be loaded first. talking: what language models
        have."""
        self.store = store
        self.device = device
        self.thread = thread
        self.verifier = verifier
        self.checks: list[Callable[[Manifest], None]] = []
        """Conditions that a version must meet: each raises a ModelError."""
        self._aside = aside
        self._talking = talking or Talking()
        self._texts: InferenceThread | None = None
        self._pairs: InferenceThread | None = None
        self._turn = asyncio.Lock()
        self._weights: dict[str, int] = {}
        """Key of a folder and precision -> bytes of its weights, for those that have been candidates."""
        self._keys: dict[tuple[str, Load], str] = {}

    async def candidate(self, name: str, load: Load, course: Course) -> ModelFolder:
        """A version's folder, tried as far as that can be done beside what is live. Raises ModelError."""
        version, precision = load
        folder = await asyncio.to_thread(self.store.fetch, name, version, course.downloaded)
        for check in self.checks:
            check(folder.manifest)
        course.to(Stage.VERIFYING)
        key = self._keys[name, load] = folder.key(precision)
        self._weights[key] = await asyncio.to_thread(folder.weights, precision)
        memory, need = self.device.memory, self.need(folder, precision)
        if memory.limit is not None and need > memory.limit:
            raise NoRoomError(f"{folder.identity} can never be held: {memory.told(need)}")
        if self.verifier is not None:
            async with self.turn():
                await self._try(self.verifier, folder, precision, need)
        return folder

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Where somebody counts, versions are tried and loaded one after the other: so room that one of them has been
        given, or that others make for it, is nobody else's, and what is measured is its own."""
        if not self.counts:
            yield
            return
        async with self._turn:
            yield

    @property
    def counts(self) -> bool:
        """Whether there is an account of the device's memory: on the CPU nobody needs one."""
        return self.device.runs_on != "cpu" or self.device.memory.limit is not None

    async def tried(self, name: str, load: Load, course: Course) -> Manifest:
        """Has a version do all that it must before it goes live, and lets it go. Raises ModelError."""
        folder = await self.candidate(name, load, course)
        if self.verifier is not None:
            return folder.manifest
        async with self.turn():
            roomy = self.device.memory.fits(self.need(folder, load[1]))
            device, share = (self.device, self.share(folder, load[1])) if roomy else (Device.of("cpu"), None)
            (await asyncio.to_thread(begin, folder, device, self.thread, precision=load[1], share=share)).close()
        return folder.manifest

    def need(self, folder: ModelFolder, precision: str) -> int:
        """Bytes of the device that a candidate will take."""
        key = folder.key(precision)
        return self.device.memory.need(key, self._weights[key])

    def need_of(self, name: str, load: Load) -> int:
        """The same for what has been a candidate here; 0 for what hasn't."""
        key = self._keys.get((name, load))
        return 0 if key is None else self.device.memory.need(key, self._weights[key])

    def share(self, folder: ModelFolder, precision: str) -> Share | None:
        """What a candidate may hold of the device, where somebody counts. Raises NoRoomError."""
        if not self.counts:
            return None
        return self.device.memory.reserve(folder.identity, self.need(folder, precision))

    async def begun(
        self,
        folder: ModelFolder,
        precision: str,
        share: Share | None,
        course: Course,
        within_s: float | None = None,
    ) -> LiveVersion:
        """Loads a candidate here. within_s: how long that may take; what comes later is let go.

        Raises what Runtime raises, and UnsafeModelError after the limit.
        """
        loading = asyncio.ensure_future(
            asyncio.to_thread(
                begin,
                folder,
                self.device,
                self._thread_of(folder.manifest),
                aside=self._aside,
                warming=lambda: course.to(Stage.WARMING),
                precision=precision,
                share=share,
                talking=self._talking,
            )
        )
        await asyncio.wait((loading,), timeout=within_s)
        if not loading.done():
            loading.add_done_callback(_let_go)
            raise UnsafeModelError(f"{folder.identity}: it wasn't loaded within {within_s:,.0f} s")
        runtime = loading.result()
        return LiveVersion(runtime.manifest, runtime, course, precision, share)

    def _thread_of(self, manifest: Manifest) -> InferenceThread:
        """Questions are embedded on a thread of their own: in the way of no score. Rerankers have another one, where a
        run is BATCH pairs at most and lets others pass: in the way of no question either."""
        if manifest.kind is Kind.RERANKER:
            if self._pairs is None:
                self._pairs = InferenceThread("pairs", max_rows=BATCH, nice=NICE)
            return self._pairs
        if manifest.kind is not Kind.EMBEDDER:
            return self.thread
        if self._texts is None:
            self._texts = InferenceThread("texts")
        return self._texts

    async def begun_again(self, version: LiveVersion) -> LiveVersion:
        """Loads what has been unloaded, whatever is left of the device. Raises as begun()."""
        runtime = version.engine
        assert isinstance(runtime, Runtime | Embedder | Reranker)
        course = Course(version.course.who)
        course.to(Stage.VERIFYING)
        share = self.device.memory.take(runtime.folder.identity, self.need(runtime.folder, version.precision))
        return await self.begun(runtime.folder, version.precision, share, course, patience(runtime.folder))

    async def _try(self, verifier: Verifier, folder: ModelFolder, precision: str, need: int) -> None:
        """In another process: on the device where that has room for it beside all that is held, else on the CPU."""
        memory, hurry = self.device.memory, not self.thread.load.joined
        if memory.limit is None:
            await verifier.check(folder, hurry=hurry, precision=precision)
        elif memory.fits(need):
            share = memory.reserve(f"the trial of {folder.identity}", need)
            try:
                place = Place(self.device.name, share.most, once=self.device.accelerator is not None)
                await verifier.check(folder, hurry=hurry, precision=precision, place=place)
            finally:
                share.free()
        else:
            log.info("%s is tried on the CPU: there is no room for it beside what is live", folder.identity)
            await verifier.check(folder, hurry=hurry, precision=precision, place=Place("cpu"))


def whole(load: Load) -> str:
    """A version with its precision, as people write it."""
    version, precision = load
    return version if precision == FP32 else f"{version} in {precision}"


def _let_go(loading: asyncio.Future[Runtime | Decoder | Embedder | Adapter | Reranker]) -> None:
    """Of a load that nobody waits for any more."""
    if not loading.cancelled() and loading.exception() is None:
        loading.result().close()
