"""A runtime knows arrays and one thread; no record, no topic, no faust."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from core.errors import ManifestError, UsageError
from models import ort
from models.device import Device
from models.engine import Array, Arrays
from models.folder import ModelFolder
from models.golden import check_golden, warm_up
from models.inference import InferenceThread
from models.scores import Scores
from models.signature import check_signature, output_names


class Runtime:
    """One model version in ONNX Runtime, verified: an Engine. Make it with Runtime.load."""

    def __init__(
        self,
        folder: ModelFolder,
        device: Device,
        thread: InferenceThread,
        aside: InferenceThread | None = None,
        warming: Callable[[], None] = lambda: None,
    ) -> None:
        """Loads and verifies, which takes its time: call it off the event loop, as `load` does.

        aside: the thread of calls that must be in nobody's way. warming: told before the first run. Raises
        ManifestError when the graph can't be loaded or contradicts the manifest, ProviderMissingError,
        GoldenMismatchError.
        """
        self.manifest = folder.manifest
        self.identity = folder.sha256
        self._thread = thread
        self._aside = aside or thread
        self._outputs = output_names(folder.manifest)
        options = ort.runtime.SessionOptions()
        options.intra_op_num_threads = 1  # more pays for large models alone
        options.inter_op_num_threads = 1
        options.log_severity_level = ort.QUIET
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            session = ort.runtime.InferenceSession(str(folder.onnx), options, providers=device.providers)
        except Exception as error:
            raise ManifestError(f"{folder.identity}: {folder.onnx.name} can't be loaded: {error}") from error
        self._session: ort.runtime.InferenceSession | None = session
        device.verify(session.get_providers())
        check_signature(folder.manifest, session.get_inputs(), session.get_outputs())
        warming()
        warm_up(folder.manifest, self.compute)
        check_golden(folder.manifest, self.compute)

    @classmethod
    async def load(
        cls,
        folder: ModelFolder,
        device: Device,
        thread: InferenceThread,
        aside: InferenceThread | None = None,
        warming: Callable[[], None] = lambda: None,
    ) -> Self:
        """Loads and verifies in a thread of its own. Raises what the constructor does."""
        return await asyncio.to_thread(cls, folder, device, thread, aside, warming)

    def compute(self, inputs: Arrays) -> dict[str, Array]:
        """Runs the session where it is called. Raises what ONNX Runtime raises, UsageError after close."""
        session = self._session
        if session is None:
            raise UsageError(f"{self.manifest.identity} is closed; hold it with LiveModels.using while it computes")
        return dict(zip(self._outputs, session.run(self._outputs, inputs), strict=True))

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
        self._session = None
