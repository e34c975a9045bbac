"""What scripts/gpu-check runs: the paths that need a GPU, each compared with the CPU or with a promise."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from core.errors import HeldError, ProviderMissingError
from core.events import Deployment
from models import ort
from models.device import Device
from models.engine import Array
from models.inference import InferenceThread
from models.live import LiveModels
from models.manifest import MANIFEST
from models.runtime import Runtime
from models.store import ModelStore

NOT_RUN: Final = 3
VERSIONS: Final = ("1", "2", "3")
WIDTH: Final = 64
LAYERS: Final = (1024, 1024, 256)
"""A network of 1.4 million weights: large enough for a GPU to have something to do, 5.5 MB to carry."""
BATCHES: Final = (1, 64, 512, 4096)
PARITY: Final = 1e-3
"""A GPU multiplies matrices in TF32 where it can: about three digits."""
ASKERS: Final = 8
GROWTH: Final = 1.05


@dataclass
class Check:
    """The lines that were printed, and what of them didn't hold."""

    device: Device
    failed: list[str] = field(default_factory=list)

    def tell(self, name: str, value: object, unit: str, holds: bool = True, **conditions: object) -> None:
        """Prints a line."""
        if not holds:
            self.failed.append(name)
        line = {"name": name, "value": value, "unit": unit, "holds": holds, "device": self.device.runs_on, **conditions}
        print(json.dumps(line), flush=True)


def write_models(into: Path) -> None:
    """A store with three versions of one network: churn/1, /2 and /3. Needs the package onnx."""
    from onnx import TensorProto, helper, numpy_helper

    for version in VERSIONS:
        rng = np.random.default_rng(int(version))
        nodes, weights, before, last = [], [], WIDTH, "X"
        for number, width in enumerate((*LAYERS, 2)):
            matrix = (rng.normal(size=(before, width)) / before**0.5).astype(np.float32)
            weights += [numpy_helper.from_array(matrix, f"W{number}")]
            weights += [numpy_helper.from_array(np.zeros(width, np.float32), f"B{number}")]
            nodes.append(helper.make_node("Gemm", [last, f"W{number}", f"B{number}"], [f"g{number}"]))
            nodes.append(helper.make_node("Relu", [f"g{number}"], [f"r{number}"]))
            before, last = width, f"r{number}"
        nodes[-1] = helper.make_node("Softmax", [f"g{len(LAYERS)}"], ["probabilities"], axis=1)
        graph = helper.make_graph(
            nodes,
            "network",
            [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["n", WIDTH])],
            [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", 2])],
            weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 9
        raw = bytes(model.SerializeToString())
        path = into / "churn" / version
        path.mkdir(parents=True, exist_ok=True)
        (path / "model.onnx").write_bytes(raw)
        manifest = {
            "name": "churn",
            "version": version,
            "labels": ["stay", "leave"],
            "inputs": {"X": {"fields": [f"f{number}" for number in range(WIDTH)]}},
            "outputs": {"probabilities": "probabilities"},
            "files": {"model.onnx": sha256(raw).hexdigest()},
        }
        (path / MANIFEST).write_text(json.dumps(manifest))


def rows(count: int, seed: int = 0) -> dict[str, Array]:
    """So many rows of the network's input."""
    return {"X": np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)}


@contextmanager
def runtime(store: ModelStore, device: Device, bound: bool) -> Iterator[Runtime]:
    """The first version, asked through bound buffers or plainly."""
    thread = InferenceThread()
    made = Device(device.name, device.kind, device.index, bound=bound)
    one = Runtime(store.fetch("churn", "1"), made, thread)
    try:
        yield one
    finally:
        one.close()
        asyncio.run(thread.close())


def parity(check: Check, store: ModelStore) -> None:
    """The device computes what the CPU does; through bound buffers, bit for bit what it computes without."""
    with (
        runtime(store, Device.of("cpu"), False) as cpu,
        runtime(store, check.device, False) as plain,
        runtime(store, check.device, True) as bound,
    ):
        for count in BATCHES:
            given = rows(count, count)
            expected, asked, ours = (one.compute(given)["probabilities"] for one in (cpu, plain, bound))
            apart = float(np.abs(asked - expected).max())
            check.tell("difference from the CPU", apart, "probability", apart <= PARITY, rows=count)
            same = bool(np.array_equal(asked, ours))
            check.tell("bound buffers answer as a plain run", same, "bits", same, rows=count)
        pinned = all(one.pinned for one in bound._bindings)
        check.tell("buffers are pinned", pinned, "memory", pinned or check.device.kind == "cpu")


def throughput(check: Check, store: ModelStore, seconds: float) -> None:
    """Rows a second, by how the session is asked; the sides by turns."""
    with (
        runtime(store, Device.of("cpu"), False) as cpu,
        runtime(store, check.device, False) as plain,
        runtime(store, check.device, True) as bound,
    ):
        for count in BATCHES:
            given, done = rows(count), Counter[str]()
            taken = dict.fromkeys(("cpu", "plain", "bound"), 0.0)
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                for name, one in (("cpu", cpu), ("plain", plain), ("bound", bound)):
                    began = time.perf_counter()
                    one.compute(given)
                    taken[name] += time.perf_counter() - began
                    done[name] += count
            for name, spent in taken.items():
                check.tell("throughput", round(done[name] / spent), "rows/s", asked=name, rows=count)


@dataclass
class Load:
    """Callers that ask without a pause, as the scoring agent does, and what they saw."""

    live: LiveModels
    rows: int = 64
    asked: int = 0
    said: Counter[str] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)
    done: bool = False

    async def ask(self) -> None:
        """One caller."""
        given = rows(self.rows)
        while not self.done:
            began = time.perf_counter()
            self.asked += 1
            version = await self._answer(given)
            self.said[version] += 1
            self.waits.append(time.perf_counter() - began)

    async def _answer(self, given: dict[str, Array]) -> str:
        while True:
            try:
                with self.live.using("churn") as version:
                    await version.predict(given)
                    return version.version
            except HeldError:
                await self.live.until_live("churn", within_s=120)

    def waited_ms(self) -> dict[str, float]:
        """99th percentile and longest of what was seen since the last time."""
        found, self.waits = self.waits or [0.0], []
        return {"p99": round(1e3 * float(np.percentile(found, 99)), 3), "longest": round(1e3 * max(found), 3)}


async def swaps(check: Check, store: ModelStore, count: int, *, fit: bool) -> None:
    """Versions take over while callers ask: none is lost, and the device holds in the end what it held at first.

    fit: whether two versions fit on the device; else each makes room for the next.
    """
    device, thread = Device(check.device.name, check.device.kind, check.device.index, bound=True), InferenceThread()
    live, exchanged = LiveModels(store, device, thread), 0

    async def deploy(revision: int) -> str:
        version = VERSIONS[revision % len(VERSIONS)]
        await live.converge(Deployment(model="churn", revision=revision, active=version, since=0))
        return version

    def count_held(model: str) -> None:
        nonlocal exchanged
        exchanged += "held" in live.status()[model]

    for revision in range(1, len(VERSIONS) + 1):  # each is measured
        await deploy(revision)
    if not fit:
        estimate = device.memory.need("", store.fetch("churn", "1").weights())
        device.memory.limit = int(1.5 * max(device.memory.known.values(), default=estimate))
        await live.converge(Deployment(model="churn", revision=revision + 1, since=0))
        await deploy(revision := revision + 2)
    live.watch(count_held)
    load = Load(live)
    askers = [asyncio.create_task(load.ask()) for _ in range(ASKERS)]
    await asyncio.sleep(2)
    before, held = load.waited_ms(), device.used()
    for swap in range(1, count + 1):
        version = await deploy(revision + swap)
        seen = load.said[version]
        async with asyncio.timeout(60):
            while load.said[version] == seen:
                await asyncio.sleep(0.001)
        if swap == count // 4:
            held = device.used()
    load.done = True
    await asyncio.gather(*askers)
    how: dict[str, Any] = {"swaps": count, "two_versions_fit": fit}
    lost = load.asked - load.said.total()
    check.tell("calls without an answer", lost, "calls", lost == 0, calls=load.asked, **how)
    check.tell("wait of a call", {"without": before, "during": load.waited_ms()}, "ms", **how)
    check.tell("swaps that events waited for", exchanged, "swaps", exchanged == (0 if fit else count), **how)
    after = device.used()
    if held is not None and after is not None:
        check.tell("memory of the device", after, "bytes", after <= GROWTH * held, after_a_quarter=held, **how)
    live.close()
    await thread.close()
    counted = device.memory.held
    check.tell("memory that is still counted", counted, "bytes", counted == 0, **how)


def found(name: str) -> Device:
    """The device to check. Ends the process where it isn't there."""
    if name == "cpu":
        return Device("cpu", bound=True)
    smi = shutil.which("nvidia-smi")
    if smi is None or subprocess.run([smi, "-L"], capture_output=True, check=False).returncode:
        not_run("there is no NVIDIA GPU here (nvidia-smi is missing, or finds none)")
    try:
        device = Device.of(name)
        if device.accelerator is None:
            not_run(f"this onnxruntime has only {', '.join(ort.runtime.get_available_providers())}")
    except ProviderMissingError as error:
        not_run(str(error))
    return device


def not_run(why: str) -> NoReturn:
    """Says so, and ends the process with a status of its own."""
    print(f"gpu-check: NOT RUN: {why}. `--on cpu` rehearses it.", file=sys.stderr)
    sys.exit(NOT_RUN)


def main() -> None:
    """Reads the command line, runs what it asks for, and ends with its status."""
    logging.basicConfig(level=logging.ERROR)
    if sys.argv[1:2] == ["models"]:
        write_models(Path(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(prog="scripts/gpu-check run")
    parser.add_argument("--on", default="cuda:0", metavar="DEVICE")
    parser.add_argument("--models", type=Path, metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="few swaps, short rounds")
    given = parser.parse_args()
    check = Check(found(given.on))
    count, seconds = (8, 0.2) if given.quick else (200, 3.0)
    with tempfile.TemporaryDirectory(prefix="homunculus-gpu-") as temporary:
        folder = given.models or Path(temporary)
        if given.models is None:
            write_models(folder)
        store = ModelStore(str(folder))
        steps: list[tuple[str, Callable[[], object]]] = [
            ("parity", lambda: parity(check, store)),
            ("throughput", lambda: throughput(check, store, seconds)),
            ("swaps", lambda: asyncio.run(swaps(check, store, count, fit=True))),
            ("exchanges", lambda: asyncio.run(swaps(check, store, max(8, count // 4), fit=False))),
        ]
        versions = {"onnxruntime": ort.runtime.__version__, "python": sys.version.split()[0]}
        check.tell("providers", ort.runtime.get_available_providers(), "names", **versions)
        for name, step in steps:
            try:
                step()
            except Exception as error:  # what else there is to learn in the time that the machine is lent
                check.tell(name, repr(error), "error", holds=False)
    if check.failed:
        sys.exit(f"gpu-check: did not hold: {', '.join(sorted(set(check.failed)))}")


if __name__ == "__main__":
    main()
