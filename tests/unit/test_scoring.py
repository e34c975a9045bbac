"""Which prediction belongs to which event, where a batch mixes partitions, models and events without a score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from agents import shadows
from agents.scoring import Scorer
from core.events import Observation, Prediction
from core.settings import Settings
from engine.batch import Batch, Slice
from engine.publisher import partition_of
from engine.store import PartitionStore, RocksMemory
from models.drift.answers import Answers, Scored
from models.engine import Arrays
from models.manifest import Manifest
from models.routing import Routing
from models.swap import Course, Stage
from models.version import LiveVersion
from tables.sessions import sessions


class Echo:
    """A model whose second label has its first field, x, as its probability: beyond 1, the row is no use."""

    def __init__(self, identity: str) -> None:
        self.identity = identity

    async def run(self, inputs: Arrays, *, aside: bool = False) -> Arrays:
        x = inputs["i"][:, :1]
        return {"p": np.concatenate((1 - x, x), axis=1)}

    def close(self) -> None:
        """Nothing to free."""


def version(name: str, number: str = "1", fields: Sequence[str] = ("x",)) -> LiveVersion:
    manifest = Manifest.model_validate(
        {
            "name": name,
            "version": number,
            "labels": ["no", "yes"],
            "inputs": {"i": {"dtype": "float32", "fields": list(fields)}},
            "outputs": {"probabilities": "p"},
            "files": {"model.onnx": "0" * 64},
        }
    )
    course = Course(f"{name}@{number}")
    course.stage = Stage.WARMING
    return LiveVersion(manifest, cast(Any, Echo(f"{name}@{number}")), course)


class Worker:
    """As much of one as scoring needs."""

    def __init__(self, folder: Path, *models: str) -> None:
        self.versions = {name: version(name) for name in models}
        self.settings = Settings()
        self.outputs = {"predictions", "scores"}
        self.models = self
        self.routings: dict[str, Routing] = {}
        self.committer, self.meters = None, SimpleNamespace(sent=lambda outputs: None)
        self._shards = [sessions.shard(PartitionStore(folder / str(p), ["sessions"], RocksMemory())) for p in range(2)]

    @contextmanager
    def routed(self, name: str | None) -> Iterator[Routing]:
        model = name or next(iter(self.versions))
        yield self.routings.get(model) or Routing(model, self.versions[model])

    def topic_name(self, topic: Any) -> str:
        return cast(str, topic.name)

    def slice(self, partition: int, first: int, events: Sequence[tuple[float, str | None]]) -> Slice[Observation]:
        task: Any = SimpleNamespace(
            engine=self, partition=partition, epoch=0, shard=lambda name: self._shards[partition]
        )
        records: list[Any] = [
            SimpleNamespace(offset=first + n, timestamp=0, key=b"ann", value=b"{}", headers=[])
            for n in range(len(events))
        ]
        s: Slice[Observation] = Slice(task, "observations", records)
        s.events = [Observation(f"e{x}", "ann", 1000, {"x": x}, model) for x, model in events]
        return s


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path, "a", "b")


async def scored(worker: Worker, *slices: Slice[Observation]) -> list[list[tuple[str, str, str, float]]]:
    """Each slice's predictions: id, event, model, score."""
    await Scorer(cast(Any, worker)).score(Batch(list(slices)))
    found = []
    for s in slices:
        [staged] = [one for one in s.outputs if one.topic == "predictions"]
        predictions = [msgspec.json.decode(cast(bytes, value), type=Prediction) for value in staged.values]
        assert [dict(h)["source"] for h in staged.headers] == [p.id.encode() for p in predictions]
        found.append([(p.id, p.event_id, p.model, round(p.scores["yes"], 3)) for p in predictions])
    return found


async def test_each_event_gets_the_answer_of_the_model_it_asks_for(worker: Worker) -> None:
    one = worker.slice(0, 10, [(0.1, "b"), (0.2, None), (0.3, "b")])
    two = worker.slice(1, 20, [(0.4, "a"), (0.5, "b")])
    assert await scored(worker, one, two) == [
        [
            ("observations/0/10", "e0.1", "b", 0.1),
            ("observations/0/11", "e0.2", "a", 0.2),
            ("observations/0/12", "e0.3", "b", 0.3),
        ],
        [("observations/1/20", "e0.4", "a", 0.4), ("observations/1/21", "e0.5", "b", 0.5)],
    ]


@pytest.mark.parametrize("models", [(None, None, None), ("a", "b", "b")])
async def test_an_event_without_a_usable_score_is_a_dead_letter_and_shifts_nobodys_answer(
    worker: Worker, models: tuple[str | None, ...]
) -> None:
    one = worker.slice(0, 10, list(zip((0.1, 7.0, 0.3), models, strict=True)))
    two = worker.slice(0, 13, [(8.0, "b"), (0.5, None)])
    first, second = await scored(worker, one, two)
    assert [(id_, score) for id_, _, _, score in first] == [("observations/0/10", 0.1), ("observations/0/12", 0.3)]
    assert [(id_, score) for id_, _, _, score in second] == [("observations/0/14", 0.5)]
    letters = [(offset, dict(letter.headers[0])["error"]) for s in (one, two) for offset, letter in s.dropped]
    assert letters == [(11, b"ScoreError"), (13, b"ScoreError")]


async def test_an_event_that_is_alone_and_has_not_what_its_model_needs_is_a_dead_letter(worker: Worker) -> None:
    alone = worker.slice(0, 10, [(cast(float, None), None)])
    await Scorer(cast(Any, worker)).score(Batch([alone]))
    assert [(offset, dict(letter.headers[0])["error"]) for offset, letter in alone.dropped] == [(10, b"FieldError")]
    assert not any(staged.keys for staged in alone.outputs)


async def test_detectors_are_told_what_the_predictions_say(worker: Worker) -> None:
    one = worker.slice(0, 10, [(0.1, "b"), (7.0, None), (0.3, None), (0.8, "b")])
    two = worker.slice(1, 20, [(0.4, "a")])
    await Scorer(cast(Any, worker)).score(Batch([one, two]))
    told = {}
    for s in (one, two):
        for staged in s.outputs:
            if staged.topic == "scores":
                [key], [value] = staged.keys, staged.values
                answers = Answers.of([msgspec.msgpack.decode(cast(bytes, value), type=Scored)], 0)
                told[key, s.partition] = [
                    (answers.source(i), int(answers.best[i]), round(float(answers.score[i]), 3), int(answers.ts[i]))
                    for i in range(len(answers))
                ]
                assert staged.partition == partition_of(cast(bytes, key), 8)
    assert told == {
        (b"b@1", 0): [("observations/0/10", 0, 0.9, 1000), ("observations/0/13", 1, 0.8, 1000)],
        (b"a@1", 0): [("observations/0/12", 0, 0.7, 1000)],
        (b"a@1", 1): [("observations/1/20", 0, 0.6, 1000)],
    }


async def test_slices_of_one_partition_are_folded_in_their_order(worker: Worker) -> None:
    parts = [
        worker.slice(0, 10, [(0.1, None)] * 2),
        worker.slice(1, 5, [(0.1, None)]),
        worker.slice(0, 12, [(0.1, None)]),
    ]
    await scored(worker, *parts)
    counts = [after[0, 0] for s in parts for _, (rows, after, _) in s.changed if rows is not None and after is not None]
    assert counts == [2, 1, 3]


async def test_a_text_is_no_error_of_an_event_whose_model_does_not_want_a_number_there(worker: Worker) -> None:
    """Whatever other models, canaries and shadows in the same batch want."""
    shadow = version("a", "2", ("x", "country"))
    worker.routings["a"] = Routing("a", worker.versions["a"], shadows=(shadow,))
    one = worker.slice(0, 10, [(0.1, "a"), (0.2, "b")])
    one.events[0].features["country"] = "de"
    one.events[1].features["country"] = "at"
    assert [(event, score) for _, event, _, score in (await scored(worker, one))[0]] == [("e0.1", 0.1), ("e0.2", 0.2)]
    assert one.dropped == []


async def test_what_a_canary_refuses_and_the_active_version_would_have_answered_is_its_error(worker: Worker) -> None:
    canary = version("a", "2", ("x", "age"))
    worker.routings["a"] = Routing("a", worker.versions["a"], canary, 1.0)
    one = worker.slice(0, 10, [(0.1, "a"), (0.2, "a"), (0.3, "a")])
    one.events[0].features["age"] = 40.0
    del one.events[2].features["x"]
    assert [event for _, event, _, _ in (await scored(worker, one))[0]] == ["e0.1"]
    assert [offset for offset, _ in one.dropped] == [11, 12]
    assert (canary.figures.answers, canary.figures.failures) == (1, 1)


async def test_an_event_is_compared_once_whether_or_not_it_names_its_model(worker: Worker) -> None:
    canary = version("a", "2")
    worker.routings["a"] = Routing("a", worker.versions["a"], canary, 1.0, paired=True)
    scorer = Scorer(cast(Any, worker))
    await scorer.score(Batch([worker.slice(0, 10, [(0.1, "a"), (0.2, None), (0.9, "a")])]))
    compared = scorer._shadows._runner
    assert compared is not None
    await compared
    assert (canary.figures.answers, canary.figures.compared, canary.figures.agreed) == (3, 3, 3)
    assert canary.in_flight == 0


async def test_what_there_is_no_room_to_compare_is_counted_and_nobody_waits(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadows, "WAITING", 3)
    canary = version("a", "2")
    worker.routings["a"] = Routing("a", worker.versions["a"], canary, 1.0, paired=True)
    scorer = Scorer(cast(Any, worker))
    for offset in (10, 20):
        await scorer.score(Batch([worker.slice(0, offset, [(0.1, "a"), (0.2, "a")])]))
    compared = scorer._shadows._runner
    assert compared is not None
    await compared
    assert (canary.figures.answers, canary.figures.compared, canary.figures.dropped) == (4, 2, 2)
    await scorer.score(Batch([worker.slice(0, 30, [(0.3, "a"), (0.4, "a")])]))
    again = scorer._shadows._runner
    assert again is not None
    await again
    assert canary.figures.compared == 4


@pytest.mark.parametrize("label", ['lea"ves', "x\\y", "tab\t", "ja\u2028"])
async def test_a_label_may_be_any_text(worker: Worker, label: str) -> None:
    odd = worker.versions["a"].manifest.model_copy(update={"labels": ("no", label)})
    worker.versions["a"].manifest = odd
    one = worker.slice(0, 10, [(0.9, "a")])
    await Scorer(cast(Any, worker)).score(Batch([one]))
    [staged] = [out for out in one.outputs if out.topic == "predictions"]
    prediction = msgspec.json.decode(cast(bytes, staged.values[0]), type=Prediction)
    assert prediction.label == label
    assert set(prediction.scores) == {"no", label}
