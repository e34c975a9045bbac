"""What language models have on a worker, all of them together."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from models.decoder.blocks import Blocks
from models.decoder.decoder import Decoder, Sizes
from models.decoder.disk import BlockFolder
from models.device import Device
from models.folder import ModelFolder

log = logging.getLogger(__name__)

TRIED: Final = Sizes(slots=1, threads=1)
"""What a candidate is tried with."""


class Talking:
    """Sizes, and one folder for the attention state of idle sessions."""

    def __init__(self, sizes: Sizes | None = None, folder: Path | None = None, budget: int = 0) -> None:
        """folder: made when the first model is loaded; budget: its bytes. Without them what is idle is dropped when its
        slot is needed."""
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

    def load(self, folder: ModelFolder, device: Device, warming: Callable[[], None]) -> Decoder:
        """Loads and verifies, which takes its time: call it off the event loop. Raises as Decoder.load."""
        warming()
        return Decoder(folder, device, self.sizes, self.blocks)
