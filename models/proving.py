"""Before a version is published: it is loaded as a worker does, and gets a golden example if it has none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from models import engines
from models.device import Device
from models.folder import ModelFolder
from models.golden import matrices, neutral
from models.inference import InferenceThread
from models.manifest import Golden, Scalar
from models.runtime import Runtime
from models.scores import Scores


def tried(folder: ModelFolder) -> ModelFolder:
    """The folder, loaded as a worker does, whatever its kind, and let go of. Outside every event loop. Raises what its
    engine raises."""
    thread = InferenceThread()
    try:
        engines.load(folder, Device.of("cpu"), thread).close()
    finally:
        asyncio.run(thread.close())
    return folder


@contextmanager
def loaded(folder: ModelFolder) -> Iterator[Runtime]:
    """The version on the CPU, verified. For tools, outside every event loop. Raises what Runtime raises."""
    thread = InferenceThread()
    try:
        yield Runtime(folder, Device.of("cpu"), thread)
    finally:
        asyncio.run(thread.close())


def proved(folder: ModelFolder) -> ModelFolder:
    """The folder, verified; without a golden example it gets one: what it computes from its defaults, or zeros.

    That tells nothing of how good the model is, but another ONNX Runtime, device or file that computes something else
    is found out. Where the model gives no number for such a row it stays without. Raises what Runtime raises.
    """
    with loaded(folder) as runtime:
        if folder.manifest.golden:
            return folder
        example = _plain(folder)
        scores = Scores.of(folder.manifest.uncalibrated, runtime.compute(matrices(folder.manifest, [example])))
    if len(scores.broken):
        return folder
    expected = dict(zip(scores.labels, map(float, scores.matrix[0]), strict=True))
    tolerance = max(1e-4, *(abs(value) * 1e-4 for value in expected.values()))
    golden = (Golden(inputs=example, expected=expected, tolerance=tolerance),)
    manifest = folder.manifest.model_copy(update={"golden": golden})
    manifest.write(folder.path)
    return ModelFolder.open(folder.path, manifest.name, manifest.version)


def _plain(folder: ModelFolder) -> dict[str, Scalar | None]:
    values: dict[str, Any] = {}
    for given, field in folder.manifest.fields():
        values.setdefault(field.name, neutral(given.dtype) if field.required else None)
    return values
