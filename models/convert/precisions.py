"""Coarser files beside a version's model.onnx, and what each costs and saves, measured before anybody relies on it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from core.errors import ConversionError, ManifestError, ModelError
from models.convert.coarser import COARSER
from models.device import Device
from models.engine import Array
from models.folder import ModelFolder, hashes
from models.golden import Example, matrices
from models.inference import InferenceThread
from models.manifest import MANIFEST, MODEL, Manifest
from models.precision import FP32, Precision
from models.runtime import Runtime
from models.scores import Scores

ROWS: Final = 64
"""Of the run whose latency is measured."""
RUNS: Final = 50
MEASURING_S: Final = 1.0
"""For each precision, at most."""


def add_precisions(folder: ModelFolder, names: Sequence[str], rows: Sequence[Example] = ()) -> ModelFolder:
    """Makes files of these precisions in the folder, measures them, and names them in its manifest.

    rows: field -> value, like those to come; golden examples are always among them. Outside every event loop.
    Precisions that are there already stay, those of the same name are made anew. Raises ConversionError that says what
    can't be made and why; the folder is as it was then.
    """
    who, manifest = folder.identity, folder.manifest
    if unknown := [name for name in names if name not in COARSER]:
        raise ConversionError(f"{who}: there is no way to {', '.join(unknown)}; there is one to {', '.join(COARSER)}")
    examples = [*(example.inputs for example in manifest.golden), *rows]
    if not examples:
        raise ConversionError(f"{who} has no golden example, and there are no rows: nothing to measure an error on")
    try:
        tried = matrices(manifest, examples)
    except (KeyError, TypeError, ValueError) as error:
        raise ConversionError(f"{who}: a row has no usable value for each field: {error!r}") from None
    with _beside(folder) as work:
        for name in dict.fromkeys(names):
            file = work / f"model.{name}.onnx"
            for old in (file, file.with_name(f"{file.name}.data")):
                old.unlink(missing_ok=True)
            COARSER[name](work / MODEL, file, tried, who)
        made = _measured(work, manifest, tuple(dict.fromkeys(names)), tried)
        for path in (*made.manifest.files, MANIFEST):  # the manifest last: until then it is what it was
            os.replace(work / path, folder.path / path)
    for path in manifest.files.keys() - made.manifest.files.keys():
        (folder.path / path).unlink()
    return ModelFolder.open(folder.path, manifest.name, manifest.version)


@contextmanager
def _beside(folder: ModelFolder) -> Iterator[Path]:
    """A copy of the folder that shares its large files; what is written anew has to be unlinked first."""
    with tempfile.TemporaryDirectory(dir=folder.path.absolute().parent, prefix=".precisions-") as temporary:
        work = Path(temporary) / folder.path.name
        shutil.copytree(folder.path, work, copy_function=_linked)
        (work / MANIFEST).unlink()
        yield work


def _linked(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # no links on this file system
        shutil.copyfile(source, target)
    return target


def read_rows(file: Path) -> list[Example]:
    """Rows of a file: a JSON object a line, field -> value. Raises ManifestError that names the line."""
    rows: list[Example] = []
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{file} can't be read: {error}") from None
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line) if line.strip() else None
        except ValueError as error:
            raise ManifestError(f"{file}, line {number}: no JSON: {error}") from None
        if row is not None and not isinstance(row, dict):
            raise ManifestError(f"{file}, line {number}: write an object, field and value")
        if row is not None:
            rows.append(row)
    return rows


def _measured(path: Path, manifest: Manifest, names: Sequence[str], tried: dict[str, Array]) -> ModelFolder:
    """Writes the manifest twice: with any error allowed, so that the files can be loaded, then with what was found."""
    who = manifest.identity
    files = hashes(path)
    offered = dict(manifest.offered) | {name: Precision(file=f"model.{name}.onnx", max_error=1e30) for name in names}
    draft = _written(path, manifest, files, offered)
    thread = InferenceThread()
    runtimes: dict[str, Runtime] = {}
    try:
        for name in offered:
            try:
                runtimes[name] = Runtime(draft, Device.of("cpu"), thread, precision=name)
            except ModelError as error:
                raise ConversionError(f"{who} in {name} doesn't compute: {error}") from error
        exact = Scores.of(manifest, runtimes[FP32].compute(tried))
        latencies = _latencies(runtimes, tried)
        for name, runtime in runtimes.items():
            apart = _apart(who, name, exact, Scores.of(manifest, runtime.compute(tried)))
            offered[name] = Precision(
                file=offered[name].file,
                max_error=0.0 if name == FP32 else apart,
                rows=0 if name == FP32 else len(exact),
                latency=latencies[name],
                bytes=draft.weights(name),
            )
    finally:
        for runtime in runtimes.values():
            runtime.close()
        asyncio.run(thread.close())
    made = _written(path, manifest, files, offered)
    _prove(made, names)
    return made


def _written(path: Path, manifest: Manifest, files: Mapping[str, str], offered: Mapping[str, Precision]) -> ModelFolder:
    changed = manifest.model_dump() | {"files": dict(files), "precisions": dict(offered)}
    Manifest.model_validate(changed).write(path)
    return ModelFolder.open(path, manifest.name, manifest.version)


def _prove(folder: ModelFolder, names: Sequence[str]) -> None:
    """As a worker does before one goes live."""
    thread = InferenceThread()
    try:
        for name in names:
            Runtime(folder, Device.of("cpu"), thread, precision=name).close()
    except ModelError as error:
        raise ConversionError(f"{folder.identity}: {error}") from error
    finally:
        asyncio.run(thread.close())


def _apart(who: str, name: str, exact: Scores, found: Scores) -> float:
    """Largest absolute difference, over the rows that the exact model has a score for."""
    broken = set(found.broken.tolist()) - set(exact.broken.tolist())
    if broken:
        raise ConversionError(f"{who} in {name} gives no usable score for row {min(broken)}, where {FP32} does")
    whole = np.setdiff1d(np.arange(len(exact)), exact.broken)
    differences = np.abs(found.matrix[whole].astype(np.float64) - exact.matrix[whole])
    return float(differences.max(initial=0.0))


def _latencies(runtimes: Mapping[str, Runtime], tried: dict[str, Array]) -> dict[str, float]:
    """Median seconds of a run, the precisions by turns: what else the machine does is the same for all."""
    places = np.resize(np.arange(len(next(iter(tried.values())))), ROWS)
    rows: dict[str, Any] = {name: array[places] for name, array in tried.items()}
    times: dict[str, list[float]] = {name: [] for name in runtimes}
    until = time.perf_counter() + MEASURING_S * len(runtimes)
    for _ in range(RUNS):
        for name, runtime in runtimes.items():
            began = time.perf_counter()
            runtime.compute(rows)
            times[name].append(time.perf_counter() - began)
        if time.perf_counter() > until:
            break
    return {name: median(taken) for name, taken in times.items()}
