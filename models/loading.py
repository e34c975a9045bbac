"""Which engine computes a version: its kind says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from models.device import Device
from models.embedder.embedder import Embedder
from models.folder import ModelFolder
from models.inference import InferenceThread
from models.manifest import Kind
from models.runtime import Runtime


def load(
    folder: ModelFolder,
    device: Device,
    thread: InferenceThread,
    aside: InferenceThread | None = None,
    warming: Callable[[], None] = lambda: None,
) -> Runtime | Embedder:
    """Loads and verifies, which takes its time: call it off the event loop. Raises the ModelErrors of the engine."""
    kind = Embedder if folder.manifest.kind is Kind.EMBEDDER else Runtime
    return kind(folder, device, thread, aside, warming)


async def loaded(
    folder: ModelFolder,
    device: Device,
    thread: InferenceThread,
    aside: InferenceThread | None = None,
    warming: Callable[[], None] = lambda: None,
) -> Runtime | Embedder:
    """As load(), in a thread of its own."""
    return await asyncio.to_thread(load, folder, device, thread, aside, warming)
