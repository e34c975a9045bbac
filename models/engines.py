"""Which engine computes a version: its kind says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from models.budget import Share
from models.device import Device
from models.embedder.embedder import Embedder
from models.folder import ModelFolder
from models.inference import InferenceThread
from models.manifest import Kind
from models.precision import FP32
from models.runtime import Runtime


def engine_of(
    folder: ModelFolder,
    device: Device,
    thread: InferenceThread,
    aside: InferenceThread | None = None,
    warming: Callable[[], None] = lambda: None,
    precision: str = FP32,
    share: Share | None = None,
) -> Runtime | Embedder:
    """Loads and verifies, which takes its time: call it off the event loop. Raises the ModelErrors of the engine."""
    kind = Embedder if folder.manifest.kind is Kind.EMBEDDER else Runtime
    return kind(folder, device, thread, aside, warming, precision, share)


async def loaded(
    folder: ModelFolder,
    device: Device,
    thread: InferenceThread,
    aside: InferenceThread | None = None,
    warming: Callable[[], None] = lambda: None,
    precision: str = FP32,
    share: Share | None = None,
) -> Runtime | Embedder:
    """As engine_of(), in a thread of its own."""
    return await asyncio.to_thread(engine_of, folder, device, thread, aside, warming, precision, share)
