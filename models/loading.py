"""Which engine computes a version: its kind says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from models.decoder.blocks import Blocks
from models.decoder.decoder import Decoder, Sizes
from models.device import Device
from models.folder import ModelFolder
from models.inference import InferenceThread
from models.manifest import Kind
from models.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Talking:
    """What language models have on a worker."""

    sizes: Sizes = field(default_factory=Sizes)
    blocks: Blocks | None = None
    """Where idle sessions' attention state goes."""


TRIED: Sizes = Sizes(slots=1, threads=1)
"""What a candidate is tried with."""


def load(
    folder: ModelFolder,
    device: Device,
    thread: InferenceThread,
    aside: InferenceThread | None = None,
    warming: Callable[[], None] = lambda: None,
    talking: Talking | None = None,
) -> Runtime | Decoder:
    """Loads and verifies, which takes its time: call it off the event loop. Raises the ModelErrors of the engine.

    talking: of language models; without it, one is loaded as for a try.
    """
    if folder.manifest.kind is Kind.DECODER:
        warming()
        return Decoder(folder, device, talking.sizes if talking else TRIED, talking.blocks if talking else None)
    return Runtime(folder, device, thread, aside, warming)
