"""Every session feature equals a plain recount, and every score ONNX Runtime's, however the work is spread."""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.kafka import Broker
from tests.rig import Rig, rig_on
from tests.stream import EPOCH_MS
from tests.worker import tails

EVENTS: Final = 4000
SESSIONS: Final = 150
HALF_LIFE_S: Final = 900.0
SESSION_FEATURES: Final = (
    "session.count",
    "session.seconds_since_first",
    "session.seconds_since_last",
    "session.mean_gap",
    *(f"session.{kind}.f0" for kind in ("sum", "mean", "min", "max", "variance", "last", "zscore")),
    "session.decayed_mean.f0@15m",
    "session.mean.f1",
    "session.variance.f1",
)
OF_AN_EVENT: Final = ("session.seconds_since_last", "session.zscore.f0")
"""Features that a row alone doesn't tell."""
FIELDS: Final = ("f0", "f1", *SESSION_FEATURES)
F1_DEFAULT: Final = 0.5
LABELS: Final = ("no", "maybe", "yes")


@dataclass(frozen=True)
class Event:
    """One observation; f1 may be missing."""

    id: str
    session: str
    ts: int
    f0: float
    f1: float | None

    def encoded(self) -> bytes:
        features = {"f0": self.f0} | ({} if self.f1 is None else {"f1": self.f1})
        return json.dumps({"id": self.id, "session": self.session, "ts": self.ts, "features": features}).encode()


def events(count: int = EVENTS, seed: int = 11) -> list[Event]:
    """A stream in event time; f1 is missing from one in ten."""
    chance = random.Random(seed)
    ts, made = EPOCH_MS, []
    for number in range(count):
        ts += chance.randrange(1, 20_000)
        f1 = None if chance.random() < 0.1 else chance.uniform(0, 10)
        made.append(Event(f"e{number}", f"s{chance.randrange(SESSIONS)}", ts, chance.gauss(100, 30), f1))
    return made


def recount(stream: list[Event]) -> dict[str, dict[str, float]]:
    """Each event's features from all that its session had seen by then, in numpy, without our code."""
    seen: defaultdict[str, list[Event]] = defaultdict(list)
    features = {}
    for event in stream:
        history = seen[event.session]
        history.append(event)
        features[event.id] = _features(history)
    return features


def _features(history: list[Event]) -> dict[str, float]:
    now, earlier = history[-1], history[:-1]
    f0 = np.array([event.f0 for event in history])
    f1 = np.array([event.f1 for event in history if event.f1 is not None])
    age_s = np.array([(now.ts - event.ts) / 1000 for event in history])
    weights = 2.0 ** (-age_s / HALF_LIFE_S)
    spread = float(np.std(f0[:-1], ddof=1)) if len(f0) > 2 else 0.0
    return {
        "f0": now.f0,
        "f1": F1_DEFAULT if now.f1 is None else now.f1,
        "session.count": float(len(history)),
        "session.seconds_since_first": float(age_s[0]),
        "session.seconds_since_last": (now.ts - earlier[-1].ts) / 1000 if earlier else 0.0,
        "session.mean_gap": float(age_s[0]) / (len(history) - 1) if earlier else 0.0,
        "session.sum.f0": float(np.sum(f0)),
        "session.mean.f0": float(np.mean(f0)),
        "session.min.f0": float(np.min(f0)),
        "session.max.f0": float(np.max(f0)),
        "session.variance.f0": float(np.var(f0, ddof=1)) if len(f0) > 1 else 0.0,
        "session.last.f0": now.f0,
        "session.zscore.f0": (now.f0 - float(np.mean(f0[:-1]))) / spread if spread else 0.0,
        "session.decayed_mean.f0@15m": float(np.sum(weights * f0) / np.sum(weights)),
        "session.mean.f1": float(np.mean(f1)) if len(f1) else 0.0,
        "session.variance.f1": float(np.var(f1, ddof=1)) if len(f1) > 1 else 0.0,
    }


def publish(store: Path, rows: npt.NDArray[np.float64]) -> Path:
    """Puts `wide` version 1 into the store: a network that each field moves, scaled by what the rows are like."""
    numbers = np.random.default_rng(5)
    deviation = rows.std(axis=0) + 1e-9
    hidden = (numbers.normal(size=(len(FIELDS), 16)) / deviation[:, None]).astype(np.float32)
    shift = (-(rows.mean(axis=0) @ hidden.astype(np.float64))).astype(np.float32)
    initial = {"w1": hidden, "b1": shift, "w2": numbers.normal(size=(16, len(LABELS))).astype(np.float32)}
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["rows", "w1", "b1"], ["hidden"]),
            helper.make_node("Tanh", ["hidden"], ["bent"]),
            helper.make_node("MatMul", ["bent", "w2"], ["logits"]),
            helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
        ],
        "wide",
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, [None, len(FIELDS)])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [None, len(LABELS)])],
        [numpy_helper.from_array(array, name) for name, array in initial.items()],
    )
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    folder = store / "wide" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    fields: list[Any] = [{"name": "f1", "default": F1_DEFAULT} if name == "f1" else name for name in FIELDS]
    manifest = {
        "name": "wide",
        "version": "1",
        "inputs": {"rows": {"dtype": "float32", "fields": fields}},
        "outputs": {"probabilities": "probabilities"},
        "labels": list(LABELS),
        "files": {"model.onnx": hashlib.sha256(model.SerializeToString()).hexdigest()},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder / "model.onnx"


@pytest.mark.parametrize(
    ("partitions", "workers"),
    [(1, 1), (8, 2), pytest.param(1, 2, marks=pytest.mark.long), pytest.param(8, 1, marks=pytest.mark.long)],
)
def test_features_equal_a_recount_and_scores_equal_onnx_runtime(
    kafka: Broker, tmp_path: Path, partitions: int, workers: int
) -> None:
    stream = events()
    expected = recount(stream)
    rows = np.array([[expected[event.id][name] for name in FIELDS] for event in stream])
    with rig_on(kafka, tmp_path, partitions=partitions) as rig:
        model = publish(rig.store, rows)
        for number in range(workers):
            rig.worker(f"w{number}").start()
        rig.control({"active": "1"}, model="wide")
        for worker in rig.running():
            worker.wait_ready()
        for event in stream:
            rig.publisher.send(rig.topic("observations"), event.session.encode(), event.encoded())
        rig.publisher.flush()
        rig.wait_records("predictions", len(stream))
        assert_table(rig, stream, expected)
        rig.terminate()
        records = [record.json for record in rig.reader("predictions").records]

    scores = {record["event_id"]: [record["scores"][label] for label in LABELS] for record in records}
    assert len(records) == len(scores) == len(stream), tails(rig.workers)
    (computed,) = ort.InferenceSession(model).run(["probabilities"], {"rows": rows.astype(np.float32)})
    np.testing.assert_allclose([scores[event.id] for event in stream], computed, rtol=0, atol=1e-5)
    assert np.std(computed, axis=0).min() > 0.05, "a model that answers the same to everybody proves nothing"


def assert_table(rig: Rig, stream: list[Event], expected: dict[str, dict[str, float]]) -> None:
    """A sample of the sessions' rows, as the worker shows them, equals the recount of their last event."""
    last = {event.session: event for event in stream}
    for session in sorted(last)[:30]:
        row = rig.state(session)
        for name in SESSION_FEATURES:
            if name not in OF_AN_EVENT:
                shown = row.get(name.removeprefix("session."), 0.0)  # what has no value yet is left out
                assert shown == pytest.approx(expected[last[session].id][name], rel=1e-9, abs=1e-9), (session, name)
