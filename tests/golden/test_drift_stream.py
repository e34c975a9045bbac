"""Known changes in nannyml's data, from observations to alerts: Kafka, a worker, ONNX Runtime, detectors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import nannyml, sure
from tests.kafka import Broker
from tests.nannyml import Rows
from tests.rig import rig_on
from tests.worker import until

NAME = "golden"


def publish(store: Path, labels: tuple[str, ...]) -> None:
    """The identity on probabilities: what an event says is what the model answers; the last one is what is left."""
    folder = store / NAME / "1"
    folder.mkdir(parents=True)
    fields = [f"p{i}" for i in range(len(labels) - 1)]
    given = helper.make_tensor_value_info("p", TensorProto.FLOAT, [None, len(fields)])
    answered = helper.make_tensor_value_info("answer", TensorProto.FLOAT, [None, len(labels)])
    constants = [
        numpy_helper.from_array(np.array([1], np.int64), "columns"),
        numpy_helper.from_array(np.array([[1]], np.float32), "one"),
    ]
    nodes = [
        helper.make_node("ReduceSum", ["p", "columns"], ["sum"], keepdims=1),
        helper.make_node("Sub", ["one", "sum"], ["rest"]),
        helper.make_node("Concat", ["p", "rest"], ["answer"], axis=1),
    ]
    graph = helper.make_graph(nodes, NAME, [given], [answered], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    raw = model.SerializeToString()
    (folder / "model.onnx").write_bytes(raw)
    manifest = {
        "name": NAME,
        "version": "1",
        "inputs": {"p": {"fields": fields}},
        "outputs": {"probabilities": "answer"},
        "labels": list(labels),
        "files": {"model.onnx": hashlib.sha256(raw).hexdigest()},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("rows", "warning", "drift"),
    [
        pytest.param(nannyml.car_loan, 25_167, 25_599, id="car_loan"),
        pytest.param(nannyml.mc, 30_111, 30_599, id="mc", marks=pytest.mark.long),
    ],
)
def test_the_change_is_told_at_its_row_and_nothing_before(
    kafka: Broker, tmp_path: Path, rows: Callable[[], tuple[Rows, Rows]], warning: int, drift: int
) -> None:
    reference, analysis = rows()
    p = np.concatenate((reference.probabilities, analysis.probabilities[: drift + 1]))
    ts = np.concatenate((reference.ts, analysis.ts[: drift + 1]))
    with rig_on(kafka, tmp_path, partitions=1) as rig:
        publish(rig.store, reference.labels)
        worker = rig.worker("a").start()
        rig.control({"active": "1"}, model=NAME)
        worker.wait_ready()
        topic = rig.topic("observations")
        for n, (when, scores) in enumerate(zip(ts.tolist(), p.tolist(), strict=True)):
            features = {f"p{i}": score for i, score in enumerate(scores[:-1])}
            session = f"s{n % 1000}"
            event = {"id": str(n), "session": session, "ts": when, "features": features}
            rig.publisher.send(topic, session.encode(), json.dumps(event).encode())
        until(rig.publisher.delivered, 60, what="all rows are there", alive=[worker])
        sure.wait_alert(rig, "drift", within_s=120)
        rig.terminate()
        told = {
            alert["kind"]: int(alert["id"].split("/")[2]) - len(reference)
            for alert in sure.alerts(rig)
            if alert["state"] == "opened"
        }
        assert {kind: told[kind] for kind in ("drift_warning", "drift_suspected", "drift")} == {
            "drift_warning": warning,
            "drift_suspected": drift,
            "drift": drift,
        }
        assert min(told.values()) == warning
