"""A runtime knows arrays and one thread; no record, no topic, no faust."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from core.errors import UsageError
from models.binding import Binding
from models.budget import Share
from models.device import Device
from models.dtype import Dtype
from models.engine import Array, Arrays, rows_of
from models.folder import ModelFolder
from models.golden import WARM_UP, check_golden, warm_up
from models.inference import InferenceThread
from models.precision import FP32, named
from models.reader import BATCHES, Reader
from models.scores import Scores
from models.session import opened
from models.signature import check_signature, output_names


class Runtime:
    """One model version in ONNX Runtime, verified: an Engine."""

    def __init__(
        self,
        folder: ModelFolder,
        device: Device,
        thread: InferenceThread,
        aside: InferenceThread | None = None,
        warming: Callable[[], None] = lambda: None,
        precision: str = FP32,
        share: Share | None = None,
    ) -> None:
        """Loads and verifies, which takes its time: call it off the event loop.

        aside: the thread of calls that must be in nobody's way. warming: told before the first run. precision: which
        of its files. share: what it may hold of the device's memory, which is free again once it is closed, or the
        constructor has failed. Raises ManifestError when the graph can't be loaded or contradicts the manifest,
        ProviderMissingError, GoldenMismatchError, ModelError for a precision that isn't there.
        """
        self.folder = folder
        self.manifest = folder.manifest
        self.precision = precision
        self.identity = folder.key(precision)
        self.share = share
        self._device = device
        self._thread = thread
        self._aside = aside or thread
        self._outputs = output_names(folder.manifest)
        self._session: Any = None
        self._reader: Reader | None = None
        self._bindings: deque[Binding] = deque()
        """Those that nobody runs; there are as many as threads have run at once."""
        texts = any(given.dtype is Dtype.STRING for given in folder.manifest.inputs.values())
        self._binds = device.bound and not texts
        try:
            self._open(warming)
        except BaseException as error:
            self.close()
            _forget(error)
            raise

    @property
    def memory(self) -> int | None:
        """Bytes of the device that it holds, as measured or estimated; None where nobody keeps count."""
        return None if self.share is None else self.share.size

    def compute(self, inputs: Arrays) -> dict[str, Array]:
        """Runs the session where it is called. Raises what ONNX Runtime raises, UsageError after close."""
        session = self._session
        if session is None:
            raise UsageError(f"{self.manifest.identity} is closed; hold it with LiveModels.using while it computes")
        if self._reader is not None:
            return self._reader.compute(self._outputs, inputs)
        if not self._binds:
            return dict(zip(self._outputs, session.run(self._outputs, inputs), strict=True))
        try:
            binding = self._bindings.popleft()
        except IndexError:
            binding = Binding(session, self._outputs, self._device.pinned)
        try:
            return binding.run(inputs, rows_of(inputs))
        finally:
            if self._session is not None:
                self._bindings.append(binding)

    async def run(self, inputs: Arrays, *, aside: bool = False) -> Arrays:
        """Computes the outputs on an inference thread, perhaps together with other callers' rows.

        inputs: ONNX input -> (n, number of its fields), of the manifest's dtype. Raises what ONNX Runtime raises
        for these rows, and for these alone.
        """
        return await (self._aside if aside else self._thread).run(self, inputs)

    async def predict(self, inputs: Arrays) -> Scores:
        """Computes the rows and reads the answer as the manifest says. Raises as `run`, and ValueError for outputs of
        a shape that warm-up hasn't seen."""
        return Scores.of(self.manifest, await self.run(inputs))

    def close(self) -> None:
        """Frees the session; ONNX Runtime keeps its memory until then."""
        self._session = self._reader = None
        self._bindings.clear()
        if self.share is not None:
            self.share.free()

    def _open(self, warming: Callable[[], None]) -> None:
        folder, device, manifest = self.folder, self._device, self.manifest
        precision = named(self.precision, manifest.offered, manifest.identity)
        model = folder.model(self.precision)
        before = device.used()
        session = opened(model, device, folder.identity, self.share.most if self.share else None)
        self._session = session
        check_signature(manifest, session.get_inputs(), session.get_outputs())
        if manifest.reading is not None:
            self._reader = Reader(folder, manifest.reading, session)
        warming()
        # What a device's arena takes at first it holds: so the largest batch comes now, while somebody keeps count.
        sizes: tuple[int, ...] = WARM_UP if before is None else (*WARM_UP, self._thread.max_rows)
        if self._reader is not None:
            sizes = BATCHES
            self._reader.check_longest(self._outputs)
        warm_up(manifest, self.compute, sizes, precision.max_error)
        check_golden(manifest, self.compute, precision.max_error)
        after = device.used()
        if self.share is not None and before is not None and after is not None and after > before:
            self.share.measured(self.identity, after - before)


def _forget(error: BaseException | None) -> None:
    """The frames of what failed would hold the session, and with it the device's memory, as long as the error lives."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
