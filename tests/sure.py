"""A model that is as sure as its events say: feature p is the probability of `yes`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.rig import Rig
from tests.stream import EPOCH_MS
from tests.worker import until

NAME: Final = "sure"


def publish(store: Path, version: str = "1", **manifest: Any) -> Path:
    """Puts a version into a store; more of its manifest as arguments."""
    folder = store / NAME / version
    folder.mkdir(parents=True)
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT, [None, 1])
    both = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [None, 2])
    one = numpy_helper.from_array(np.array([[1]], np.float32), "one")
    nodes = [
        helper.make_node("Sub", ["one", "rows"], ["no"]),
        helper.make_node("Concat", ["no", "rows"], ["probabilities"], axis=1),
    ]
    graph = helper.make_graph(nodes, "sure", [rows], [both], [one])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    raw = model.SerializeToString()
    (folder / "model.onnx").write_bytes(raw)
    told = {
        "name": NAME,
        "version": version,
        "kind": "classifier",
        "inputs": {"rows": {"dtype": "float32", "fields": ["p"]}},
        "outputs": {"probabilities": "probabilities"},
        "labels": ["no", "yes"],
        "files": {"model.onnx": hashlib.sha256(raw).hexdigest()},
        "golden": [{"inputs": {"p": 0.25}, "expected": {"no": 0.75, "yes": 0.25}}],
        **manifest,
    }
    (folder / "manifest.json").write_text(json.dumps(told))
    return folder


def send(rig: Rig, probabilities: Iterable[float], *, first: int = 0, sessions: int = 50) -> int:
    """One event each, a second of event time apart, from event number `first` on. Returns the next number."""
    number = first
    for p in probabilities:
        session = f"s{number % sessions}"
        event = {"id": f"e{number}", "session": session, "ts": EPOCH_MS + 1000 * number, "features": {"p": float(p)}}
        rig.publisher.send(rig.topic("observations"), session.encode(), json.dumps(event).encode())
        number += 1
    until(rig.publisher.delivered, 60, what="the events are there", alive=rig.running())
    return number


def alerts(rig: Rig, kind: str | None = None) -> list[Mapping[str, Any]]:
    """What was told so far, of one kind or of all."""
    reader = rig.reader("alerts")
    reader.catch_up()
    found = [record.json for record in reader.records]
    return [alert for alert in found if kind in (None, alert["kind"])]


def wait_alert(rig: Rig, kind: str, state: str = "opened", within_s: float = 30.0) -> Mapping[str, Any]:
    """The first of its kind and state."""
    until(
        lambda: any(alert["state"] == state for alert in alerts(rig, kind)),
        within_s,
        what=f"an alert {kind} {state}",
        alive=rig.running(),
    )
    return next(alert for alert in alerts(rig, kind) if alert["state"] == state)
