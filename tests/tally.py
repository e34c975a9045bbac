"""A model whose scores spell out its session's state, so that the predictions themselves prove the state exact.

Every score is one field times a power of two: exact in float32, and back again. So each prediction tells how many
events its session had seen, their sum, mean and last value, and a test recounts them one by one.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.stream import Record, Running, Sent, recount

NAME: Final = "tally"
FIELDS: Final = ("f0", "session.count", "session.sum.f0", "session.mean.f0", "session.last.f0")
LABELS: Final = ("now", "count", "sum", "mean", "last", "rest")
SCALE: Final = (2.0**-5, 2.0**-14, 2.0**-16, 2.0**-4, 2.0**-4)
"""Of each field. With f0 below 4 and below 4,096 events a session the scores sum to less than 1; `rest` fills up."""
MOST_EVENTS: Final = 4096
"""Of one session."""


def publish(
    store: Path,
    version: str = "1",
    *,
    name: str = NAME,
    feedback: Mapping[str, Any] | None = None,
    more: Sequence[str] = (),
) -> Path:
    """Puts a version into a store. Odd versions score as SCALE says, even ones half of that. feedback: as manifests
    have it; more: session features that it asks for beside, and makes nothing of."""
    folder = store / name / version
    folder.mkdir(parents=True)
    model = _onnx(_scale(version), len(more)).SerializeToString()
    (folder / "model.onnx").write_bytes(model)
    manifest = {
        "name": name,
        "version": version,
        "kind": "classifier",
        "inputs": {"rows": {"dtype": "float32", "fields": [*FIELDS, *more]}},
        "outputs": {"probabilities": "probabilities"},
        "labels": list(LABELS),
        "files": {"model.onnx": hashlib.sha256(model).hexdigest()},
        "golden": [
            {
                "inputs": dict(zip(FIELDS, (2.0, 1.0, 2.0, 2.0, 2.0), strict=True)) | dict.fromkeys(more, 1.0),
                "expected": {"count": SCALE[1] * _scale(version), "sum": 2 * SCALE[2] * _scale(version)},
                "tolerance": 1e-6,
            }
        ],
        "licence": "Apache-2.0",
        **({"feedback": feedback} if feedback is not None else {}),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2))
    return folder


def row(state: Running, f0: float) -> npt.NDArray[np.float32]:
    """The float32 row that the model sees of an event, once it is counted."""
    return np.array([f0, state.count, state.total, state.total / state.count, state.last], np.float32)


def assert_state_of_each(predictions: Iterable[Record], sent: Iterable[Sent], *, repeated: bool = False) -> None:
    """Every event was answered, and each answer shows the state that a plain recount has right after that event;
    shadows answer nobody.

    Exactly once, or with `repeated` at least once: then repeats must carry the same id and the same scores.
    """
    sent = list(sent)
    answers = defaultdict(list)
    for record in predictions:
        if record.json["role"] != "shadow":
            answers[record.json["event_id"]].append(record.json)
    missing = [one.id for one in sent if one.id not in answers]
    invented = answers.keys() - {one.id for one in sent}
    doubled = {event: len(found) for event, found in answers.items() if len(found) > 1}
    assert not missing, f"{len(missing)} of {len(sent)} events have no prediction: {missing[:5]}"
    assert not invented, f"{len(invented)} predictions of events that nobody sent: {sorted(invented)[:5]}"
    assert repeated or not doubled, f"{len(doubled)} events have several predictions: {list(doubled.items())[:5]}"
    ids = Counter(found[0]["id"] for found in answers.values())
    assert len(ids) == len(answers), f"two events share an id: {ids.most_common(1)}"
    wrong = []
    for one, state in _states(sent):
        assert state.count < MOST_EVENTS, "too many events in a session for the scores to be exact"
        expected = {"count": state.count, "sum": state.total, "mean": state.total / state.count, "last": state.last}
        for found in answers[one.id]:
            assert found["id"] == answers[one.id][0]["id"], f"repeats of {one.id} differ in their id: {answers[one.id]}"
            got = decode(found)
            if any(abs(got[name] - value) > 1e-3 for name, value in expected.items()):
                wrong.append(f"{one.id} ({found['id']}) in {one.session}: {got}, recount {expected}")
    assert not wrong, f"{len(wrong)} predictions saw another state than a recount; the first:\n" + "\n".join(wrong[:5])


def assert_tables(state: Callable[[str], Mapping[str, Any]], sent: Iterable[Sent], sessions: int = 20) -> None:
    """The tables' rows of some sessions equal the recount; state gives a session's row."""
    for session, counted in sorted(recount(sent).items())[:sessions]:
        row = state(session)
        got = (row["count"], row["sum.f0"], row["last.f0"])
        assert got == (counted.count, counted.total, counted.last), f"{session}: {row}, recount {counted}"


def decode(prediction: Mapping[str, Any]) -> dict[str, float]:
    """The session's state as a prediction shows it."""
    scale = _scale(prediction["version"])
    scores = prediction["scores"]
    return {label: scores[label] / (unit * scale) for label, unit in zip(LABELS, SCALE, strict=False)}


def _states(sent: Iterable[Sent]) -> Iterable[tuple[Sent, Running]]:
    sessions: defaultdict[str, Running] = defaultdict(Running)
    for one in sent:
        sessions[one.session].add(one.f0)
        yield one, sessions[one.session]


def _scale(version: str) -> float:
    return 1.0 if int(version) % 2 else 0.5


def _onnx(scale: float, more: int) -> onnx.ModelProto:
    """probabilities = rows @ diagonal + (0, ..., 0, 1), the last column taking what the others leave. more: columns
    that count nothing."""
    weights = np.zeros((len(FIELDS) + more, len(LABELS)), np.float32)
    for column, unit in enumerate(SCALE):
        weights[column, column] = unit * scale
        weights[column, -1] = -unit * scale
    bias = np.array([0.0] * len(FIELDS) + [1.0], np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["rows", "weights", "bias"], ["probabilities"])],
        "tally",
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, [None, len(FIELDS) + more])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [None, len(LABELS)])],
        [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(bias, "bias")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
