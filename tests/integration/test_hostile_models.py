"""Candidates that would end a worker, or starve it: one alert each says why, and the live version goes on answering."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import onnx
import psutil

from tests import tally
from tests.hostile import X86, crashing, swallowing
from tests.rig import Rig


def greedy(model: onnx.ModelProto) -> onnx.ModelProto:
    """It wants most of the memory that is left."""
    return swallowing(model, size=int(0.8 * psutil.virtual_memory().available))


def spoiled(model: onnx.ModelProto) -> onnx.ModelProto:
    """Its weights are no numbers."""
    (weights,) = (one for one in model.graph.initializer if one.name == "weights")
    weights.raw_data = b"\xff" * len(weights.raw_data)
    return model


HOSTILE: Final = {**({crashing: "by SIGFPE"} if X86 else {}), greedy: "it may take", spoiled: "nan"}
"""What is done to the model -> a part of the reason that is given."""


def test_a_hostile_candidate_is_one_alert_and_the_live_version_loses_no_event(rig: Rig) -> None:
    worker = rig.worker("a").start()
    rig.deploy("1")
    alerts = rig.reader("alerts")
    sender = rig.sender()
    for version, (spoil, reason) in enumerate(HOSTILE.items(), start=2):
        publish(rig.store, str(version), spoil)
        rig.control({"active": str(version)})
        sender.send(200)
        rig.wait_records("alerts", version - 1)
        (alert,) = alerts.records[version - 2 :]
        assert alert.json["kind"] == "request_refused"
        assert f"tally@{version}: " in alert.json["title"]
        assert reason in alert.json["title"]
        assert worker.ready(), worker.get("/health/ready")
    sender.send(200)
    rig.assert_exact()
    assert {record.json["version"] for record in rig.reader("predictions").records} == {"1"}


def publish(store: Path, version: str, spoil: Callable[[onnx.ModelProto], onnx.ModelProto]) -> None:
    """A version of the tally, spoiled, whose manifest knows its hash."""
    folder = tally.publish(store, version)
    model = spoil(onnx.load(folder / "model.onnx")).SerializeToString()
    (folder / "model.onnx").write_bytes(model)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["model.onnx"] = hashlib.sha256(model).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
