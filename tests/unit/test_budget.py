"""A device's memory as it is declared: what fits is loaded beside the old version, what doesn't takes its place.

Real models on the CPU, with a budget as if that were a GPU of so many bytes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import GoldenMismatchError, HeldError, ModelError, NoModelError, NoRoomError, UnsafeModelError
from core.events import Canary, Deployment
from models import exchange, live
from models.accelerators import ACCELERATORS, Accelerator
from models.budget import SCRATCH, Budget, Share
from models.device import Device
from models.folder import ModelFolder
from models.inference import InferenceThread
from models.live import LiveModels
from models.runtime import Runtime
from models.store import ModelStore
from models.swap import Stage
from models.verifier import Verifier
from tests.unit.graphs import folder, linear

X = {"X": np.zeros((3, 1), np.float32)}
ONE, TWO = int(1.5 * SCRATCH), int(2.5 * SCRATCH)
"""Budgets that have room for one small version, and for two."""


@dataclass
class Bench:
    """A worker's models on a device with a budget; churn@N answers N/10."""

    root: Path
    live: LiveModels
    most: int = 0
    """Bytes that were held at once, at most."""
    revision: int = 0

    def put(self, version: str, name: str = "churn", **said: Any) -> Path:
        return folder(self.root, linear(w=0.0, b=int(version) / 10), name=name, version=version, **said)

    async def deploy(self, active: str | None, model: str = "churn", **others: Any) -> None:
        self.revision += 1
        await self.live.converge(Deployment(model=model, revision=self.revision, active=active, since=0, **others))

    async def answer(self, name: str = "churn") -> tuple[str, float]:
        """As the scoring agent asks: who answers is held, and waited for while nobody does."""
        while True:
            try:
                with self.live.using(name) as version:
                    scores = await version.predict(X)
                    return version.version, round(float(scores.matrix[0, 1]), 3)
            except HeldError:
                await self.live.until_live(name, within_s=30)

    def status(self, name: str = "churn") -> dict[str, Any]:
        return self.live.status()[name]


@pytest.fixture
async def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Bench]]:
    threads: list[InferenceThread] = []
    made: list[Bench] = []
    real = Budget.take

    def take(self: Budget, who: str, need: int) -> Any:
        share = real(self, who, need)
        for bench in made:
            if bench.live.device.memory is self:
                bench.most = max(bench.most, self.held)
        return share

    def bench(limit: int | None, verifier: Verifier | None = None) -> Bench:
        threads.append(thread := InferenceThread())
        device = Device("cpu", memory=Budget(limit))
        made.append(one := Bench(tmp_path, LiveModels(ModelStore(str(tmp_path)), device, thread, verifier=verifier)))
        for version in ("1", "2", "3"):
            one.put(version)
        return one

    monkeypatch.setattr(Budget, "take", take)
    yield bench
    for one in made:
        one.live.close()
        assert one.live.device.memory.held == 0, "something is still counted"
    for thread in threads:
        await thread.close()


async def test_what_fits_is_loaded_beside_the_version_that_answers(make: Callable[..., Bench]) -> None:
    bench = make(TWO)
    await bench.deploy("1")
    need = bench.status()["memory_bytes"]
    assert need == SCRATCH + ModelStore(str(bench.root)).fetch("churn", "1").weights()
    held: list[bool] = []
    bench.live.watch(lambda name: held.append("held" in bench.status()))
    await bench.deploy("2")
    assert await bench.answer() == ("2", 0.2)
    assert not any(held)
    assert bench.most > need
    assert bench.live.device.memory.held == bench.status()["memory_bytes"]


async def test_what_does_not_fit_beside_the_old_version_takes_its_place_and_events_wait_meanwhile(
    make: Callable[..., Bench],
) -> None:
    bench = make(ONE)
    await bench.deploy("1")
    told: list[tuple[str | None, bool]] = []
    bench.live.watch(lambda name: told.append((bench.status().get("version"), "held" in bench.status())))
    done, asked, said = False, 0, Counter[tuple[str, float]]()

    async def ask() -> None:
        nonlocal asked
        while not done:
            asked += 1
            said[await bench.answer()] += 1

    askers = [asyncio.create_task(ask()) for _ in range(8)]
    for swap in range(1, 31):
        version = "123"[swap % 3]
        before = said[version, int(version) / 10]
        await bench.deploy(version)
        async with asyncio.timeout(30):
            while said[version, int(version) / 10] == before:
                await asyncio.sleep(0)
    done = True
    await asyncio.gather(*askers)
    assert said.keys() == {("1", 0.1), ("2", 0.2), ("3", 0.3)}
    assert said.total() == asked, "each was answered once"
    assert bench.most <= ONE
    assert (None, True) in told, "status says that events wait"
    assert bench.live.device.memory.held <= ONE


async def test_what_fails_in_the_place_of_the_old_version_brings_that_back(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make(ONE)
    await bench.deploy("1")
    first = bench.live.get("churn")
    bench.put("2", golden=[{"inputs": {"value": 0}, "expected": {"leave": 0.9}}])
    asking = [asyncio.create_task(bench.answer()) for _ in range(20)]
    with pytest.raises(GoldenMismatchError, match="churn@2"):
        await bench.deploy("2")
    assert {await one for one in asking} == {("1", 0.1)}
    assert await bench.answer() == ("1", 0.1)
    assert bench.live.get("churn") is not first, "it was unloaded, and loaded again"
    assert "churn@1 is brought back" in caplog.text
    assert bench.status()["wanted"] == "2"
    assert "churn@2" in bench.status()["error"]
    assert bench.most <= ONE


async def test_a_retry_doesnt_send_the_old_version_away_again_and_a_new_request_does(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make(ONE)
    await bench.deploy("1")
    bench.put("2", golden=[{"inputs": {"value": 0}, "expected": {"leave": 0.9}}])
    with pytest.raises(GoldenMismatchError):
        await bench.deploy("2")
    back = bench.live.get("churn")
    again = bench.live.wanted("churn")
    assert again is not None
    with pytest.raises(NoRoomError, match="tried again when it is deployed again"):
        await bench.live.converge(again)
    assert bench.live.get("churn") is back
    bench.put("2")
    with pytest.raises(NoRoomError):
        await bench.live.converge(again)
    await bench.deploy("2")
    assert await bench.answer() == ("2", 0.2)


async def test_work_in_flight_ends_first_and_where_it_does_not_the_old_version_stays(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make(ONE)
    await bench.deploy("1")
    with bench.live.using("churn") as old:
        swapping = asyncio.create_task(bench.deploy("2"))
        while "held" not in bench.status():
            await asyncio.sleep(0)
        assert bench.status()["draining"] == ["1"]
        with pytest.raises(HeldError, match="its version is being loaded"):
            bench.live.resolve("churn")
        assert round(float((await old.predict(X)).matrix[0, 1]), 3) == 0.1
    await swapping
    assert await bench.answer() == ("2", 0.2)
    monkeypatch.setattr(exchange.drained, "__defaults__", (0.05,))
    with bench.live.using("churn") as old:
        with pytest.raises(NoRoomError, match=r"churn@2 still computes for somebody after 0\.05 s"):
            await bench.deploy("3")
        assert bench.live.get("churn") is old
        assert old.course.stage is Stage.ACTIVE
    assert await bench.answer() == ("2", 0.2)


async def test_a_load_that_hangs_is_given_up_the_old_version_is_back_and_what_comes_late_is_let_go(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    bench = make(ONE)
    await bench.deploy("1")
    real, hang = Runtime.__init__, threading.Event()

    def slow(self: Runtime, folder: ModelFolder, *args: Any, **options: Any) -> None:
        if folder.identity == "churn@2":
            hang.wait(30)
        real(self, folder, *args, **options)

    monkeypatch.setattr(Runtime, "__init__", slow)
    monkeypatch.setattr(live, "patience", lambda folder: 0.05)
    with pytest.raises(UnsafeModelError, match=r"churn@2: it wasn't loaded within 0 s"):
        await bench.deploy("2")
    assert await bench.answer() == ("1", 0.1)
    hang.set()
    async with asyncio.timeout(20):
        while bench.live.device.memory.held > ONE:
            await asyncio.sleep(0.01)
    assert await bench.answer() == ("1", 0.1)


async def test_where_the_old_version_can_not_be_brought_back_nothing_answers_and_it_is_said(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make(ONE)
    await bench.deploy("1")
    bench.put("2", golden=[{"inputs": {"value": 0}, "expected": {"leave": 0.9}}])
    with bench.live.using("churn"):
        swapping = asyncio.create_task(bench.deploy("2"))
        while "held" not in bench.status():
            await asyncio.sleep(0)
        (bench.root / "churn" / "1" / "model.onnx").write_bytes(b"gone")
    with pytest.raises(GoldenMismatchError):
        await swapping
    assert "churn@1 can't be brought back, and nothing answers for churn" in caplog.text
    with pytest.raises(NoModelError) as told:
        bench.live.resolve("churn")
    assert not isinstance(told.value, HeldError), "events that may be dead letters don't wait for ever"
    bench.put("3")
    await bench.deploy("3")
    assert await bench.answer() == ("3", 0.3)


async def test_a_canary_that_does_not_fit_beside_the_active_version_is_left_out_and_the_judge_says_so(
    make: Callable[..., Bench],
) -> None:
    bench = make(ONE)
    await bench.deploy("1")
    with pytest.raises(NoRoomError, match=r"churn@2 doesn't fit: it needs 67\.\d MB.*hold 100\.7 MB, and churn@1 67"):
        await bench.deploy("1", canary=Canary(version="2", share=0.5))
    assert await bench.answer() == ("1", 0.1)
    assert "canary" not in bench.status()
    await bench.live.verify("churn", "2")
    wanted = Deployment(
        model="churn", revision=9, active="1", canary=Canary(version="2", share=0.5), shadow=("3",), since=0
    )
    with pytest.raises(NoRoomError, match=r"churn can't be held as a whole.*Unload a canary or a shadow"):
        bench.live.check_room(wanted)
    bench.live.check_room(wanted.model_copy(update={"active": "2", "canary": None, "shadow": ()}))


async def test_a_canary_that_is_there_goes_before_the_active_version_has_to(make: Callable[..., Bench]) -> None:
    bench = make(TWO)
    await bench.deploy("1", canary=Canary(version="2", share=0.5))
    first, held = bench.live.get("churn"), []
    bench.live.watch(lambda name: held.append("held" in bench.status()))
    await bench.deploy("1", canary=Canary(version="3", share=0.5))
    assert bench.live.get("churn") is first
    assert not any(held)
    assert bench.status()["canary"]["version"] == "3"
    await bench.deploy("3", shadow=("1",))
    assert (bench.status()["version"], bench.status()["shadow"][0]["version"]) == ("3", "1")
    await bench.deploy("2", shadow=("1",))
    assert await bench.answer() == ("2", 0.2)
    assert bench.status()["shadow"][0]["version"] == "1", "what stays was never unloaded"
    assert bench.live.get("churn") is not first
    assert bench.most <= TWO
    held.clear()
    await bench.deploy("2", canary=Canary(version="1", share=0.5))
    await bench.deploy("3")
    assert await bench.answer() == ("3", 0.3)
    assert not any(held), "the canary that nobody wants made room enough"


async def test_two_models_share_one_budget(make: Callable[..., Bench]) -> None:
    bench = make(ONE)
    bench.put("5", name="fraud")
    await bench.deploy("1")
    with pytest.raises(NoRoomError, match=r"fraud@5 doesn't fit.*churn@1"):
        await bench.deploy("5", model="fraud")
    await bench.deploy(None)
    wanted = bench.live.wanted("fraud")
    assert wanted is not None
    await bench.live.converge(wanted)
    assert await bench.answer("fraud") == ("5", 0.5)


async def test_two_models_that_exchange_at_once_take_nothing_from_each_other(make: Callable[..., Bench]) -> None:
    bench = make(TWO)
    for version in ("5", "6"):
        bench.put(version, name="fraud")
    await bench.deploy("1")
    await bench.deploy("5", model="fraud")
    bench.put("2", golden=[{"inputs": {"value": 0}, "expected": {"leave": 0.9}}])
    asking = [asyncio.create_task(bench.answer(name)) for name in ("churn", "fraud") * 10]
    failed, _ = await asyncio.gather(bench.deploy("2"), bench.deploy("6", model="fraud"), return_exceptions=True)
    assert isinstance(failed, GoldenMismatchError)
    assert (await bench.answer(), await bench.answer("fraud")) == (("1", 0.1), ("6", 0.6))
    assert len([await one for one in asking]) == 20
    assert bench.most <= TWO, "a version that is brought back has the room that it left"


async def test_what_can_never_fit_is_refused_before_anything_is_touched(make: Callable[..., Bench]) -> None:
    bench = make(SCRATCH)
    with pytest.raises(NoRoomError, match="churn@1 can never be held"):
        await bench.live.verify("churn", "1")
    with pytest.raises(NoRoomError, match="churn@1 can never be held"):
        await bench.deploy("1")


async def test_the_newest_of_two_requests_wins_through_an_exchange(make: Callable[..., Bench]) -> None:
    bench = make(ONE)
    await bench.deploy("1")
    asking = [asyncio.create_task(bench.answer()) for _ in range(20)]
    await asyncio.gather(bench.deploy("2"), bench.deploy("3"), return_exceptions=True)
    assert await bench.answer() == ("3", 0.3)
    assert len([await one for one in asking]) == 20
    assert bench.most <= ONE


async def test_a_candidate_is_tried_elsewhere_and_counted_while_it_is(make: Callable[..., Bench]) -> None:
    verifier = Verifier("cpu")
    bench = make(TWO, verifier)
    await bench.deploy("1")
    tried = bench.most
    assert tried <= TWO
    bench.put("2", golden=[{"inputs": {"value": 0}, "expected": {"leave": 0.9}}])
    with pytest.raises(GoldenMismatchError):
        await bench.deploy("2")
    assert bench.live.get("churn") is not None
    assert bench.most > tried
    await verifier.close()


async def test_nobody_counts_on_the_cpu_and_without_a_declared_budget_all_fits(tmp_path: Path) -> None:
    bench = Bench(tmp_path, LiveModels(ModelStore(str(tmp_path)), Device.of("cpu"), InferenceThread()))
    bench.put("1")
    await bench.deploy("1")
    assert "memory_bytes" not in bench.status()
    assert bench.live.device.memory.fits(10**18)
    bench.live.close()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60)), max_size=40))
def test_however_shares_come_and_go_what_is_reserved_never_passes_the_limit(asked: list[tuple[int, int]]) -> None:
    budget = Budget(100)
    shares: list[Share] = []
    for which, need in asked:
        if need == 0 and shares:
            shares.pop(which % len(shares)).free()
            continue
        try:
            shares.append(budget.reserve(f"churn@{which}", need))
        except ModelError:
            assert budget.held + need > 100
        assert budget.held == sum(share.size for share in shares) <= 100
        assert budget.left == 100 - budget.held
        assert all(share.most == share.size + budget.left for share in shares)


def test_what_was_measured_is_what_is_counted_from_then_on() -> None:
    budget = Budget(1000)
    share = budget.reserve("churn@1", budget.need("abc", 100) - SCRATCH)
    share.measured("abc", 700)
    assert (budget.held, budget.left, budget.need("abc", 100)) == (700, 300, 700)
    share.free()
    share.free()
    assert budget.held == 0


@pytest.mark.filterwarnings("ignore:Duplicate provider")
async def test_a_version_is_measured_while_it_is_loaded_and_counted_so_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An accelerator that computes as the CPU does; how much of its memory is taken is what the test says."""
    figures = iter([500, 700, 700, 1300])
    caps: list[int | None] = []
    batches: list[int] = []

    def options(index: int, memory: int | None) -> dict[str, Any]:
        caps.append(memory)
        return {}

    simulated = Accelerator("CPUExecutionProvider", options, lambda: None, lambda index: next(figures), pinned)
    monkeypatch.setitem(cast(dict[str, Accelerator], ACCELERATORS), "simulated", simulated)
    device = Device("simulated", "simulated", 3, Budget(2 * SCRATCH), bound=True)
    thread = InferenceThread(max_rows=1000)
    live = LiveModels(ModelStore(str(tmp_path)), device, thread)
    bench = Bench(tmp_path, live)
    real = Runtime.compute

    def compute(self: Runtime, inputs: Any) -> Any:
        batches.append(len(inputs["X"]))
        return real(self, inputs)

    monkeypatch.setattr(Runtime, "compute", compute)
    for version in ("1", "2"):
        bench.put(version)
    await bench.deploy("1")
    assert bench.status()["memory_bytes"] == 200
    assert max(batches) == 1000, "the largest batch has been seen before anybody counts"
    await bench.deploy("1", canary=Canary(version="2", share=0.5))
    assert (bench.status()["memory_bytes"], bench.status()["canary"]["memory_bytes"]) == (200, 600)
    assert caps == [2 * SCRATCH, 2 * SCRATCH - 200], "each may grow to what the other leaves"
    assert device.runs_on == "simulated:3"
    assert await bench.answer() in {("1", 0.1), ("2", 0.2)}
    live.close()
    assert device.memory.held == 0
    await thread.close()


def pinned(index: int, size: int) -> Any:
    return np.empty(size, np.uint8)
