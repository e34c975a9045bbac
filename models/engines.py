"""Which engine computes a version: its kind says so."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from models.budget import Share
from models.decoder.adapter import Adapter
from models.decoder.blocks import Blocks
from models.decoder.decoder import Decoder, Sizes
from models.decoder.disk import BlockFolder
from models.device import Device
from models.embedder.embedder import Embedder
from models.folder import ModelFolder
from models.inference import InferenceThread
from models.manifest import Kind
from models.precision import FP32
from models.reranker.reranker import Reranker
from models.runtime import Runtime

log = logging.getLogger(__name__)


class Talking:
    """What language models have on a worker: all of them together."""

    def __init__(self, sizes: Sizes | None = None, folder: Path | None = None, budget: int = 0) -> None:
        """folder: for the attention state of idle sessions, so many bytes at most; made when the first model is loaded.
        Without one it is dropped when its slot is needed."""
        self.sizes = sizes or Sizes()
        self._folder, self._budget = folder, budget
        self._blocks: BlockFolder | None = None
        self._lock = threading.Lock()

    @property
    def blocks(self) -> Blocks | None:
        """Where it goes. A folder that can't be made costs no answer: it is as if there were none, and said so."""
        with self._lock:
            if self._blocks is None and self._folder is not None and self._budget:
                try:
                    self._blocks = BlockFolder(self._folder, self._budget)
                except OSError as error:
                    log.warning("Attention state of idle sessions isn't kept on disk: %s", error)
                    self._folder = None
            return self._blocks


TRIED: Sizes = Sizes(slots=1, threads=1)
"""What a candidate is tried with."""


def load(
    folder: ModelFolder,
    device: Device,
    thread: InferenceThread,
    aside: InferenceThread | None = None,
    warming: Callable[[], None] = lambda: None,
    precision: str = FP32,
    share: Share | None = None,
    talking: Talking | None = None,
) -> Runtime | Decoder | Embedder | Adapter | Reranker:
    """Loads and verifies, which takes its time: call it off the event loop. Raises the ModelErrors of the engine.

    precision, share: as Runtime takes them; models for texts have one precision. talking: of language models; without
    it, one is loaded as for a try.
    """
    if folder.manifest.kind is Kind.DECODER:
        warming()
        return Decoder(folder, device, talking.sizes if talking else TRIED, talking.blocks if talking else None)
    if folder.manifest.kind is Kind.ADAPTER:
        warming()
        return Adapter(folder)
    if folder.manifest.kind is Kind.EMBEDDER:
        return Embedder(folder, device, thread, aside, warming, precision, share)
    if folder.manifest.kind is Kind.RERANKER:
        return Reranker(folder, device, thread, aside, warming, precision, share)
    return Runtime(folder, device, thread, aside, warming, precision, share)
