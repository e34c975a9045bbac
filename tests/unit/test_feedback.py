"""The feedback agent beside scoring, on the real engine: whatever batches, commits and crashes cut the stream into, a
label is told once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.feedback import judge
from agents.scoring import score
from core.events import Feedback, Observation
from core.topics import FEEDBACK, OBSERVATIONS, PREDICTIONS, SCORES
from engine.publisher import partition_of
from engine.testing import InMemory, in_memory
from models.drift.outcomes import Outcomes
from models.joining import Fate
from tables.predicted import begin_of, predicted
from tables.sessions import sessions
from tests import tally

T0 = 1_764_374_400_000
HORIZON_MS = 60_000


def trial(store: Path, feedback: dict[str, Any] | None = None, **more: Any) -> InMemory:
    if not store.exists():
        tally.publish(store, feedback=feedback or {"horizon": HORIZON_MS / 1e3, "signals": {"click": "count"}})
    found = in_memory([score, judge], [sessions, predicted], model_store=str(store), partitions=2, **more)
    assert isinstance(found, InMemory)
    return found


async def begun(one: InMemory) -> None:
    sessions.configure(one.models.needed(), None, 100)
    await one.deploy("tally", "1")
    predicted.fates.clear()


def observation(event: str, ts: int = T0, session: str = "ann") -> Observation:
    return Observation(event, session, ts, {"f0": 1.0})


def label(
    id: str, event: str, label: str | None = "rest", ts: int = T0 + 1, session: str = "ann", **more: Any
) -> Feedback:
    return Feedback(id, session, ts, event, more.pop("type", "label"), label=label, **more)


def told(one: InMemory) -> list[Outcomes]:
    """What was told of labels, committed."""
    records = [record for record in one.outputs(SCORES) if msgspec.msgpack.decode(record.value)[0] == "outcomes"]
    assert all(record.key == "tally@1" for record in records)
    assert {record.partition for record in records} <= {partition_of(b"tally@1", 2)}
    return [msgspec.msgpack.decode(record.value, type=Outcomes) for record in records]


def sums(one: InMemory) -> dict[tuple[str, int], int]:
    """(observation, label) -> weight."""
    found: Counter[tuple[str, int]] = Counter()
    for record in told(one):
        assert record.offsets[-1] == record.offset == max(record.offsets)
        for outcome in record.outcomes:
            found[outcome.source, outcome.label] += outcome.weight
    return {what: weight for what, weight in found.items() if weight}


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_cut_of_both_topics_tells_what_a_join_afterwards_finds(seed: int, tmp_path_factory: Any) -> None:
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patched:
        if (
            rng.random() < 0.6
        ):  # commits that carry little: what is finished waits for its turn, in no order over topics
            patched.setattr("engine.quota.SOME", 8)
            patched.setattr("engine.quota.LEAST", 4)
        asyncio.run(_any_cut(rng, tmp_path_factory.mktemp("cuts") / "store"))


async def _any_cut(rng: random.Random, store: Path) -> None:
    async with trial(store) as one:
        await begun(one)
        events = [observation(f"e{n}", T0 + n, f"s{n % 5}/{n % 3}%") for n in range(60)]
        said: list[Feedback] = []
        for number in range(120):
            about = rng.choice(events)
            kind = rng.choice(["label", "label", "correction", "click", "view"])
            said.append(
                label(
                    f"f{number}", about.id, rng.choice(tally.LABELS), about.ts + rng.randrange(2 * HORIZON_MS),
                    about.session, type=kind,
                )
            )  # fmt: skip
        said += rng.sample(said, 40)
        rng.shuffle(said)
        one.publish(OBSERVATIONS, events)
        one.publish(FEEDBACK, said)
        for _ in range(40):
            act = rng.random()
            if act < 0.8:
                await one.read(rng.choice([OBSERVATIONS, FEEDBACK]), rng.randrange(1, 20))
            elif act < 0.95:
                await one.commit()
            else:
                await one.crash()
        await one.settle()
        assert sums(one) == _afterwards(one, said)
        assert len(one.outputs(PREDICTIONS)) == len(events)


def _afterwards(one: InMemory, said: list[Feedback]) -> dict[tuple[str, int], int]:
    """The join in plain words."""
    found = {}
    for prediction in (record.value for record in one.outputs(PREDICTIONS)):
        words = []
        for word in said:
            if word.event_id == prediction.event_id and word.ts <= prediction.ts + HORIZON_MS and word.type != "view":
                means = "count" if word.type == "click" else word.label
                words.append((["click", "label", "correction"].index(word.type), word.ts, word.id, means))
        if words:
            found[prediction.id, tally.LABELS.index(str(max(words)[-1]))] = 1
    return found


async def test_a_label_goes_with_its_version_to_its_detectors_and_counts_on_the_worker(tmp_path: Path) -> None:
    async with trial(tmp_path / "store") as one:
        await begun(one)
        await one.send(OBSERVATIONS, [observation("a", T0 + 5), observation("b")])
        await one.send(FEEDBACK, [label("1", "a"), label("2", "b", "now")])
        await one.settle()
        [outcomes] = told(one)
        place = partition_of(b"ann", 2)
        assert (outcomes.partition, outcomes.offset, outcomes.topic) == (place, 1, "feedback")
        assert [(o.ts, o.source, o.label, o.weight) for o in outcomes.outcomes] == [
            (T0 + 5, f"observations/{place}/0", 5, 1),
            (T0, f"observations/{place}/1", 0, 1),
        ]
        scores = {record.value.event_id: record.value.scores for record in one.outputs(PREDICTIONS)}
        assert outcomes.outcomes[0].scores == tuple(scores["a"].values())
        version = one.models.get("tally")
        assert version is not None
        assert (version.figures.labelled, version.figures.right, version.figures.accuracy) == (2, 1, 0.5)
        await one.send(FEEDBACK, [label("3", "b", type="correction"), label("2", "b", "now")])
        assert (version.figures.labelled, version.figures.right, version.figures.accuracy) == (2, 2, 1.0)
        assert predicted.fates == {Fate.JOINED: 2, Fate.CORRECTED: 1, Fate.REPEATED: 1}


async def test_feedback_that_comes_first_waits_for_its_answer(tmp_path: Path) -> None:
    async with trial(tmp_path / "store") as one:
        await begun(one)
        said = [label("1", "a"), label("2", "b", "none such"), label("3", "c", ts=T0 + HORIZON_MS + 1)]
        await one.send(FEEDBACK, said)
        await one.settle()
        assert told(one) == []
        await one.crash()
        await one.send(OBSERVATIONS, [observation(event) for event in "abc"])
        await one.settle()
        [outcomes] = told(one)
        assert (outcomes.topic, outcomes.offset) == ("observations", 0)
        assert len(outcomes.outcomes) == 1
        [letter], [late] = one.dead_letters(), one.late()
        place = partition_of(b"ann", 2)
        assert (letter.headers["source"], letter.headers["error"]) == (f"feedback/{place}/1", "FeedbackError")
        assert "tally@1 has no label 'none such'; it has now, count" in letter.headers["message"]
        assert msgspec.json.decode(letter.value, type=Feedback) == said[1]
        assert (late.headers["source"], late.headers["late-ms"]) == (f"feedback/{place}/2", "1")
        assert msgspec.json.decode(late.value, type=Feedback) == said[2]
        assert one.engine.meters.late["feedback"] == one.engine.meters.dead_letters["feedback", "FeedbackError"] == 1


async def test_what_was_never_asked_for_costs_nothing_and_is_counted(tmp_path: Path) -> None:
    tally.publish(tmp_path / "store")
    async with trial(tmp_path / "store") as one:
        await begun(one)
        await one.send(OBSERVATIONS, [observation("a")])
        await one.send(FEEDBACK, [label("1", "a"), label("2", "a", model="tally")])
        await one.settle()
        assert one.values(predicted) == {}
        assert predicted.fates == {Fate.UNASKED: 2}


async def test_what_is_late_or_of_no_use_says_why(tmp_path: Path) -> None:
    async with trial(tmp_path / "store") as one:
        await begun(one)
        await one.send(OBSERVATIONS, [observation("a")])
        said: list[Feedback | bytes] = [
            label("1", "a", ts=T0 + HORIZON_MS + 7),
            label("2", "a", "none such"),
            label("3", "a", None),
            label("4", "a", ts=253_402_300_799_999),
            b"nonsense",
            b'{"id": "6", "session": "ann", "ts": 1, "event_id": "a", "type": "label", "score": 1e400}',
            b'{"id": "7", "session": "bob", "ts": 1, "event_id": "a", "type": "label", "label": "now"}',
            b'{"id": "8", "session": "ann", "ts": -1, "event_id": "a", "type": "label", "label": "now"}',
            b'{"id": "9", "session": "ann", "ts": 1, "event_id": "a", "type": "label", "label": 3}',
            b'{"id": "10", "session": "ann", "ts": 1, "event_id": "", "type": "label", "label": "now"}',
            b"[" * 100_000,
        ]  # fmt: skip
        await one.send(FEEDBACK, said, key="ann")
        await one.settle()
        letters = {
            int(letter.headers["source"].rpartition("/")[2]): letter.headers["error"] for letter in one.dead_letters()
        }
        assert letters == {
            1: "FeedbackError", 2: "FeedbackError", 3: "TimeError", 4: "DecodeError", 5: "DecodeError",
            6: "KeyMismatchError", 7: "DecodeError", 8: "DecodeError", 9: "DecodeError", 10: "DecodeError",
        }  # fmt: skip
        [late] = one.late()
        assert late.headers["late-ms"] == "7"
        assert (late.headers["event-time"], late.headers["until"]) == (
            "2025-11-29T00:01:00.007Z",
            "2025-11-29T00:01:00.000Z",
        )
        assert told(one) == []


async def test_an_event_that_is_answered_twice_is_judged_by_its_first_answer(tmp_path: Path) -> None:
    async with trial(tmp_path / "store") as one:
        await begun(one)
        await one.send(OBSERVATIONS, [observation("a"), observation("a", T0 + 9)])
        await one.send(FEEDBACK, [label("1", "a")])
        await one.send(OBSERVATIONS, [observation("a", T0 + 20)])
        await one.settle()
        assert [outcome.ts for record in told(one) for outcome in record.outcomes] == [T0]
        assert predicted.fates == {Fate.DOUBLED: 2, Fate.JOINED: 1}


async def test_what_nothing_can_be_said_of_any_more_is_forgotten_by_event_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.checkpoints.INTERVAL_S", 0.0)
    async with trial(tmp_path / "store") as one:
        await begun(one)
        await one.send(FEEDBACK, [label("1", "never", ts=T0)])
        await one.send(OBSERVATIONS, [observation(f"e{n}", T0 + n) for n in range(2500)])
        await one.settle()
        assert len(one.values(predicted)) == 2501
        for n in range(200):
            await one.send(OBSERVATIONS, [observation(f"later{n}", T0 + 3 * HORIZON_MS)])
            await one.commit()
            await asyncio.sleep(0.01)
            if len(one.values(predicted)) == n + 1:
                break
        assert all(key.startswith("ann/later") for key in one.values(predicted))
        assert predicted.fates[Fate.FORGOTTEN] == 1


async def test_an_erased_session_takes_its_answers_along_and_no_other_ones(tmp_path: Path) -> None:
    async with trial(tmp_path / "store") as one:
        await begun(one)
        names = ["ann", "ann/e", "ann%2Fe", "anna"]
        await one.send(OBSERVATIONS, [observation("e", session=name) for name in names])
        await one.settle()
        shards = [one.engine.tasks[n].shard("predicted") for n in range(2)]
        for name in names:
            keys = [key for shard in shards for key in predicted.keys_of(name, shard)]
            assert keys == [begin_of(name.encode()) + b"e"]
            assert predicted.session(keys[0].decode()) == name
        shown = predicted.describe(shards[partition_of(b"ann", 2)], predicted.encode(one.value(predicted, "ann/e")))  # type: ignore[arg-type]
        assert shown["answers"][0]["version"] == "tally@1"
        assert shown["until"] == "2025-11-29T00:01:00.000Z"
