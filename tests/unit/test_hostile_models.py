"""Hostile model folders: each is refused with words that name it and why, and the version that is live stays."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import pytest
import pytest_asyncio
from onnx import TensorProto, helper

from core.errors import ManifestError, ModelError, TamperedError, UnsafeModelError
from core.events import Deployment
from models.device import Device
from models.inference import InferenceThread
from models.live import LiveModels
from models.store import ModelStore
from models.verifier import Verifier
from tests.hostile import X86, crashing, endless, hollow, swallowing
from tests.unit.graphs import folder, linear, seal

pytestmark = pytest.mark.asyncio(loop_scope="module")

GIGABYTE: Final = 1_000_000_000


@dataclass
class Bench:
    """A worker's models with churn@1, which answers .1, live."""

    root: Path
    live: LiveModels
    revision: int = 1

    async def deploy(self, version: str) -> None:
        self.revision += 1
        await self.live.converge(Deployment(model="churn", revision=self.revision, active=version, since=0))

    async def answer(self) -> tuple[str, float]:
        with self.live.using("churn") as version:
            scores = await version.predict({"X": np.zeros((3, 1), np.float32)})
            return version.version, round(float(scores.matrix[0, 1]), 3)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    root = tmp_path_factory.mktemp("store")
    thread, verifier = InferenceThread(), Verifier("cpu", memory=GIGABYTE)
    made = Bench(root, LiveModels(ModelStore(str(root)), Device.of("cpu"), thread, verifier=verifier))
    folder(root, linear(w=0.0, b=0.1))
    await made.deploy("1")
    yield made
    made.live.close()
    await verifier.close()
    await thread.close()


Spoil = Callable[[Path, dict[str, Any]], None]
"""Makes a sound folder hostile: the folder, and what its manifest says of itself."""


def model(make: Callable[[onnx.ModelProto], onnx.ModelProto | bytes]) -> Spoil:
    """In the model itself, with the hashes that it has then: only trying it can tell."""

    def spoil(path: Path, said: dict[str, Any]) -> None:
        made = make(linear())
        (path / "model.onnx").write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
        seal(path, said)

    return spoil


def files(**listed: str) -> Spoil:
    """In the list of the manifest's files."""

    def spoil(path: Path, said: dict[str, Any]) -> None:
        manifest = json.loads((path / "manifest.json").read_text())
        (path / "manifest.json").write_text(json.dumps(manifest | {"files": manifest["files"] | listed}))

    return spoil


def link(to: str) -> Spoil:
    """In a symbolic link beside the model."""

    def spoil(path: Path, said: dict[str, Any]) -> None:
        (path / "vocabulary.txt").symlink_to(to)
        files(**{"vocabulary.txt": "0" * 64})(path, said)

    return spoil


def external(location: str) -> Callable[[onnx.ModelProto], onnx.ModelProto]:
    """Its weights are another file of the machine."""

    def make(honest: onnx.ModelProto) -> onnx.ModelProto:
        weights = next(one for one in honest.graph.initializer if one.name == "W")
        weights.ClearField("raw_data")
        weights.data_location = TensorProto.EXTERNAL
        weights.external_data.add(key="location", value=location)
        return honest

    return make


def opset(number: int) -> Callable[[onnx.ModelProto], onnx.ModelProto]:
    """It is written in operators that nobody knows yet."""

    def make(honest: onnx.ModelProto) -> onnx.ModelProto:
        honest.opset_import[0].version = number
        return honest

    return make


def custom_op(honest: onnx.ModelProto) -> onnx.ModelProto:
    """It wants an operator from a library of its author's."""
    honest.graph.node.append(helper.make_node("Shell", ["X"], ["shell"], domain="com.example"))
    honest.opset_import.append(helper.make_opsetid("com.example", 1))
    return honest


HOSTILE: Final[dict[str, tuple[Spoil, type[ModelError], str]]] = {
    "a path out of the folder": (files(**{"../../1/model.onnx": "0" * 64}), TamperedError, "leaves the folder"),
    "an absolute path": (files(**{"/etc/passwd": "0" * 64}), TamperedError, "leaves the folder"),
    "a link out of the folder": (
        link("/etc/passwd"),
        TamperedError,
        r"vocabulary\.txt is a link that leaves the folder",
    ),
    "weights out of the folder": (model(external("../1/model.onnx")), TamperedError, "leaves the folder"),
    "weights of an absolute path": (model(external("/etc/passwd")), TamperedError, "leaves the folder"),
    "weights of a file that isn't listed": (model(external("w.bin")), TamperedError, "doesn't list"),
    "a wrong hash": (files(**{"model.onnx": "0" * 64}), TamperedError, r"model\.onnx has sha256"),
    "an empty model": (model(lambda _: b""), ManifestError, r"model\.onnx is empty"),
    "operators of the future": (model(opset(999)), ManifestError, "can't be loaded: .*opset"),
    "an operator of its own": (model(custom_op), ManifestError, r"can't be loaded: .*com\.example"),
    "weights that are no numbers": (model(lambda _: linear(w=float("nan"))), ManifestError, "gives .*nan"),
    "a tensor that isn't there": (model(hollow), ManifestError, "can't be loaded: .*HOLLOW"),
    "a tensor of 10 GB": (model(swallowing), UnsafeModelError, "it may take 1,000 MB"),
    "a crash": (model(crashing), UnsafeModelError, "the process that tried it ended .*, by SIGFPE"),
}


@pytest.mark.parametrize("name", [name for name in HOSTILE if X86 or name != "a crash"])
async def test_a_hostile_folder_is_refused_and_the_live_version_stays(bench: Bench, name: str) -> None:
    spoil, error, told = HOSTILE[name]
    version = str(bench.revision + 1)
    golden = [{"inputs": {"value": 0.5}, "expected": {"leave": 0.5}}]
    path = folder(bench.root, linear(), version=version, golden=golden)
    said = json.loads((path / "manifest.json").read_text())
    del said["files"]
    spoil(path, said)

    with pytest.raises(error, match=rf"^churn@{version}: .*{told}"):
        await bench.deploy(version)
    assert await bench.answer() == ("1", 0.1)
    status = bench.live.status()["churn"]
    assert (status["version"], status["wanted"]) == ("1", version)
    assert f"churn@{version}" in status["error"]


async def test_a_model_that_never_answers_is_given_up_and_the_next_candidate_is_tried(bench: Bench) -> None:
    folder(bench.root, endless(linear()), version="never")
    folder(bench.root, linear(w=0.0, b=0.1), version="next")
    patient = bench.live.verifier
    bench.live.loader.verifier = impatient = Verifier("cpu", limit_s=2.0)
    with pytest.raises(UnsafeModelError, match=r"^churn@never: it was given 2 s, and had to be ended"):
        await bench.deploy("never")
    await impatient.close()
    bench.live.loader.verifier = patient
    assert await bench.answer() == ("1", 0.1)
    await bench.deploy("next")
    assert (await bench.answer())[0] == "next"
    await bench.deploy("1")
