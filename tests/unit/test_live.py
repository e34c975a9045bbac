"""Live versions: the answer changes while traffic flows, at once for everybody, and never to something unproven."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from core.errors import (
    GoldenMismatchError,
    ManifestError,
    ModelError,
    ModelNotFoundError,
    NoModelError,
    TamperedError,
    TransitionError,
    UnknownModelError,
    UsageError,
)
from core.events import Deployment
from models.device import Device
from models.features import parse
from models.inference import InferenceThread
from models.live import LiveModels
from models.manifest import Manifest
from models.runtime import Runtime
from models.store import ModelStore
from models.swap import ARROWS, Course, Stage
from tests.unit.graphs import folder, linear

X: dict[str, NDArray[Any]] = {"X": np.zeros((3, 1), np.float32)}


@dataclass
class Bench:
    """A worker's models over a store in which churn@N answers N/10, whatever it is asked."""

    root: Path
    live: LiveModels
    thread: InferenceThread
    revision: int = 0

    def put(self, version: str, name: str = "churn", **said: Any) -> Path:
        return folder(self.root, linear(w=0.0, b=int(version) / 10), name=name, version=version, **said)

    def deployment(self, active: str | None, model: str = "churn") -> Deployment:
        self.revision += 1
        return Deployment(model=model, revision=self.revision, active=active, since=0)

    async def deploy(self, active: str | None, model: str = "churn") -> None:
        await self.live.converge(self.deployment(active, model))

    async def answer(self, name: str | None = None) -> tuple[str, float]:
        """Version that answered, and what it said."""
        with self.live.using(name) as version:
            scores = await version.predict(X)
            return version.version, round(float(scores.matrix[0, 1]), 3)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    thread = InferenceThread()
    made = Bench(tmp_path, LiveModels(ModelStore(str(tmp_path)), Device.of("cpu"), thread), thread)
    for version in ("1", "2", "3"):
        made.put(version)
    yield made
    made.live.close()
    await thread.close()


async def test_a_deployed_version_answers_and_the_next_one_takes_over(bench: Bench) -> None:
    await bench.deploy("1")
    assert await bench.answer() == ("1", 0.1)
    await bench.deploy("2")
    assert await bench.answer("churn") == ("2", 0.2)
    assert bench.live.models() == ["churn"]
    status = bench.live.status()["churn"]
    assert (status["version"], status["role"], status["revision"]) == ("2", "active", 2)
    assert "error" not in status
    assert "draining" not in status


async def test_two_hundred_swaps_under_load_lose_nothing_and_mix_nothing(bench: Bench) -> None:
    await bench.deploy("1")
    done, asked, said = False, 0, Counter[tuple[str, float]]()

    async def ask() -> None:
        nonlocal asked
        while not done:
            asked += 1
            said[await bench.answer("churn")] += 1

    askers = [asyncio.create_task(ask()) for _ in range(8)]
    for swap in range(1, 201):
        version = "123"[swap % 3]
        before = said[version, int(version) / 10]
        await bench.deploy(version)
        async with asyncio.timeout(30):
            while said[version, int(version) / 10] == before:
                await asyncio.sleep(0)
    done = True
    await asyncio.gather(*askers)
    assert said.keys() == {("1", 0.1), ("2", 0.2), ("3", 0.3)}
    assert said.total() == asked
    assert bench.thread.load.failures == 0
    assert "draining" not in bench.live.status()["churn"]


async def test_work_in_flight_ends_on_the_version_it_began_on_which_is_freed_then(bench: Bench) -> None:
    await bench.deploy("1")
    with bench.live.using("churn") as old:
        await bench.deploy("2")
        assert await bench.answer() == ("2", 0.2)
        assert bench.live.status()["churn"]["draining"] == ["1"]
        assert round(float((await old.predict(X)).matrix[0, 1]), 3) == 0.1
        assert old.in_flight == 1
    with pytest.raises(UsageError, match="churn@1 is closed"):
        await old.predict(X)
    assert "draining" not in bench.live.status()["churn"]


async def test_a_version_that_still_drains_comes_back_without_being_loaded_again(bench: Bench) -> None:
    await bench.deploy("1")
    with bench.live.using("churn") as old:
        await bench.deploy("2")
        shutil.rmtree(bench.root / "churn" / "1")
        await bench.deploy("1")
        assert bench.live.get("churn") is old
    assert await bench.answer() == ("1", 0.1)


def spoil_hash(bench: Bench) -> None:
    bench.put("2")
    (bench.root / "churn" / "2" / "model.onnx").write_bytes(linear(b=0.9).SerializeToString())


def spoil_golden(bench: Bench) -> None:
    bench.put("2", golden=[{"inputs": {"value": 0}, "expected": {"leave": 0.35}}])


def spoil_signature(bench: Bench) -> None:
    bench.put("2", inputs={"X": {"fields": ["a", "b"]}})


def remove(bench: Bench) -> None:
    shutil.rmtree(bench.root / "churn" / "2")


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (spoil_hash, TamperedError),
        (spoil_golden, GoldenMismatchError),
        (spoil_signature, ManifestError),
        (remove, ModelNotFoundError),
    ],
)
async def test_a_version_that_fails_never_answers_and_the_old_one_stays(
    bench: Bench, spoil: Callable[[Bench], None], error: type[ModelError]
) -> None:
    await bench.deploy("1")
    spoil(bench)
    with pytest.raises(error, match="churn@2"):
        await bench.deploy("2")
    assert await bench.answer() == ("1", 0.1)
    status = bench.live.status()["churn"]
    assert (status["version"], status["wanted"]) == ("1", "2")
    assert "churn@2" in status["error"]
    bench.put("2")
    await bench.live.converge(Deployment(model="churn", revision=bench.revision, active="2", since=0))
    assert await bench.answer() == ("2", 0.2)
    assert "error" not in bench.live.status()["churn"]


async def test_without_a_version_that_loads_the_reason_is_told_to_whoever_asks(bench: Bench) -> None:
    with pytest.raises(ModelNotFoundError):
        await bench.deploy("9")
    with pytest.raises(NoModelError, match="churn@9 isn't in the model store"):
        bench.live.resolve("churn")
    assert bench.live.models() == []
    assert bench.live.deployed() == ["churn"]


async def test_a_version_that_is_overtaken_while_it_loads_never_answers(bench: Bench) -> None:
    await bench.deploy("1")
    seen: list[str] = []
    bench.live.watch(lambda name: seen.append(str(bench.live.status()[name]["version"])))
    await asyncio.gather(bench.deploy("2"), bench.deploy("3"))
    assert await bench.answer() == ("3", 0.3)
    assert "2" not in seen


async def test_an_older_revision_changes_nothing(bench: Bench) -> None:
    await bench.deploy("1")
    await bench.deploy("2")
    await bench.live.converge(Deployment(model="churn", revision=1, active="1", since=0))
    assert await bench.answer() == ("2", 0.2)


async def test_unloading_a_model_ends_its_answers(bench: Bench) -> None:
    await bench.deploy("1")
    await bench.deploy(None)
    assert bench.live.get("churn") is None
    with pytest.raises(UnknownModelError):
        bench.live.resolve("churn")
    with pytest.raises(NoModelError):
        bench.live.resolve(None)
    await bench.deploy("1")
    assert await bench.answer() == ("1", 0.1)


async def test_an_event_without_a_model_goes_to_the_only_one_or_to_the_default(bench: Bench) -> None:
    with pytest.raises(NoModelError, match="no model is deployed yet"):
        bench.live.resolve(None)
    await bench.deploy("1")
    assert bench.live.resolve(None) == "churn"
    bench.put("5", name="fraud")
    await bench.deploy("5", model="fraud")
    with pytest.raises(UnknownModelError, match=r"names no model.*churn, fraud"):
        bench.live.resolve(None)
    with pytest.raises(UnknownModelError, match=r"'spam' is not deployed; deployed are churn, fraud"):
        bench.live.resolve("spam")
    assert await bench.answer("fraud") == ("5", 0.5)


async def test_the_default_model_is_waited_for_even_while_others_are_live(bench: Bench) -> None:
    live = LiveModels(bench.live.store, Device.of("cpu"), bench.thread, default="fraud")
    await live.converge(bench.deployment("1"))
    with pytest.raises(NoModelError, match="'fraud'"):
        live.resolve(None)
    assert live.resolve("churn") == "churn"
    bench.put("5", name="fraud")
    await live.converge(bench.deployment("5", model="fraud"))
    assert live.resolve(None) == "fraud"
    live.close()


async def test_whoever_waits_for_a_model_gets_it_when_it_comes_and_an_error_when_it_does_not(bench: Bench) -> None:
    waiting = asyncio.create_task(bench.live.until_live(None, within_s=30))
    await asyncio.sleep(0)
    await bench.deploy("1")
    assert await waiting == "churn"
    with pytest.raises(UnknownModelError):
        await bench.live.until_live("spam", within_s=30)
    empty = LiveModels(bench.live.store, Device.of("cpu"), bench.thread)
    with pytest.raises(NoModelError):
        await empty.until_live(None, within_s=0.01)


async def test_watchers_hear_of_changes_and_of_failures(bench: Bench) -> None:
    heard: list[tuple[str, str | None]] = []
    bench.live.watch(lambda name: heard.append((name, bench.live.status()[name].get("version"))))
    await bench.deploy("1")
    with pytest.raises(ModelError):
        await bench.deploy("9")
    await bench.deploy("2")
    # Each of them when its loading begins, and when that has ended.
    live = ["1", "1", "1", "1", "2"]
    assert heard == [("churn", None), *(("churn", version) for version in live)]


async def test_a_check_of_the_worker_keeps_a_version_from_going_live(bench: Bench) -> None:
    def only_the_first(manifest: Manifest) -> None:
        if manifest.version != "1":
            raise ManifestError(f"{manifest.identity}: asks for more than sessions keep")

    bench.live.check(only_the_first)
    await bench.deploy("1")
    with pytest.raises(ManifestError, match="churn@2"):
        await bench.deploy("2")
    assert await bench.answer() == ("1", 0.1)


async def test_needed_is_what_the_store_and_the_live_versions_ask_for(bench: Bench) -> None:
    fields = {"X": {"fields": ["session.count"]}}
    bench.put("4", inputs=fields)
    await bench.deploy("4")
    shutil.rmtree(bench.root / "churn" / "4")
    bench.put("5", inputs={"X": {"fields": ["session.mean.value"]}})
    assert bench.live.needed() == {parse("session.count"), parse("session.mean.value")}


async def test_a_broken_store_is_told_as_a_model_error_and_the_next_attempt_succeeds(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any, **__: Any) -> bool:
        raise OSError("connection refused")

    with monkeypatch.context() as broken:
        broken.setattr(bench.live.store._fs, "isdir", unreachable)
        with pytest.raises(ModelError, match="connection refused"):
            await bench.deploy("1")
    await bench.deploy("1")
    assert await bench.answer() == ("1", 0.1)


@pytest.mark.parametrize(("owner", "step"), [(ModelStore, "fetch"), (Runtime, "__init__")])
async def test_the_event_loop_goes_on_while_a_version_loads(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, owner: type, step: str
) -> None:
    loads, turned = threading.Event(), threading.Event()
    real = getattr(owner, step)

    def slow(*args: Any, **options: Any) -> Any:
        loads.set()
        assert turned.wait(10), "the event loop stood still"
        return real(*args, **options)

    async def turn() -> None:
        while not loads.is_set():
            await asyncio.sleep(0)
        turned.set()

    monkeypatch.setattr(owner, step, slow)
    turning = asyncio.create_task(turn())
    await bench.deploy("1")
    await turning
    assert await bench.answer() == ("1", 0.1)


@pytest.mark.parametrize("stage", list(Stage))
def test_a_stage_leads_only_where_an_arrow_points(stage: Stage) -> None:
    for to in Stage:
        course = Course("churn@1")
        course.stage = stage
        if to in ARROWS[stage]:
            course.to(to)
            assert course.stage is to
        else:
            with pytest.raises(TransitionError, match=f"churn@1 is {stage} and can't become {to}"):
                course.to(to)
            assert course.stage is stage


def test_every_stage_can_be_reached_and_each_version_comes_to_an_end() -> None:
    ends = {stage for stage in Stage if not ARROWS[stage]}
    assert ends == {Stage.UNLOADED, Stage.FAILED}
    for stage in Stage:
        assert _reachable(stage) & ends or stage in ends
    assert _reachable(Stage.DOWNLOADING) == set(Stage) - {Stage.DOWNLOADING}


def _reachable(stage: Stage) -> set[Stage]:
    found: set[Stage] = set()
    todo = set(ARROWS[stage])
    while todo:
        found |= (new := {todo.pop()})
        todo |= {to for one in new for to in ARROWS[one]} - found
    return found


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_memory_after_a_thousand_swaps_is_what_it_was_after_fifty(bench: Bench) -> None:
    before, memory = 0, psutil.Process()
    for swap in range(1000):
        await bench.deploy("12"[swap % 2])
        await bench.answer()
        if swap == 50:
            before = memory.memory_info().rss
    assert memory.memory_info().rss < 1.05 * before
