"""The inference thread: everybody gets the answer to their own rows, in order, whatever was merged on the way."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from core.errors import UsageError
from models.device import Device
from models.engine import Arrays, Load, rows_of
from models.folder import ModelFolder
from models.inference import InferenceThread, Outputs
from models.runtime import Runtime
from tests.unit.graphs import folder, lookup

Int = NDArray[np.int64]


@dataclass(eq=False)
class Doubling:
    """Doubles its rows, remembers each run, and can be made to wait or to fail for a row."""

    poison: int | None = None
    gate: threading.Event = field(default_factory=threading.Event)
    started: threading.Event = field(default_factory=threading.Event)
    runs: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    def compute(self, inputs: Arrays) -> Outputs:
        rows: list[int] = inputs["x"].tolist()
        self.runs.append(rows)
        self.started.set()
        if not self.gate.wait(30):
            raise TimeoutError("nobody opened the gate")
        if self.poison in rows:
            raise ArithmeticError(f"{self.poison} can't be doubled")
        return {"y": inputs["x"] * 2}


def x(*values: int) -> dict[str, Int]:
    return {"x": np.array(values, np.int64)}


async def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0)


@pytest.fixture
async def thread() -> AsyncIterator[InferenceThread]:
    running = InferenceThread()
    yield running
    await running.close()


async def queued(thread: InferenceThread, runtime: Doubling, *calls: dict[str, Int]) -> list[asyncio.Task[Outputs]]:
    """Starts the calls while a first one, of the same runtime, holds the thread; opens the gate when all wait."""
    runtime.gate.clear()
    runtime.started.clear()
    first = asyncio.create_task(thread.run(runtime, x(0)))
    await until(runtime.started.is_set)
    tasks = [asyncio.create_task(thread.run(runtime, call)) for call in calls]
    await until(lambda: thread.load.queued_rows == 1 + sum(map(rows_of, calls)))
    runtime.gate.set()
    await first
    return tasks


async def test_what_waits_is_merged_in_order_and_each_gets_its_own_rows(thread: InferenceThread) -> None:
    runtime = Doubling()
    tasks = await queued(thread, runtime, x(1, 2), x(3), x(4, 5, 6))
    answers = [(await task)["y"].tolist() for task in tasks]
    assert answers == [[2, 4], [6], [8, 10, 12]]
    assert runtime.runs == [[0], [1, 2, 3, 4, 5, 6]]
    assert thread.load.queued_rows == 0


async def test_a_run_takes_no_more_rows_than_the_limit_and_keeps_the_order() -> None:
    thread, runtime = InferenceThread(max_rows=4), Doubling()
    tasks = await queued(thread, runtime, x(1, 2), x(3, 4, 5), x(6), x(*range(10, 20)))
    await asyncio.gather(*tasks)
    assert runtime.runs == [[0], [1, 2], [3, 4, 5, 6], list(range(10, 20))]
    await thread.close()


async def test_runtimes_are_never_mixed(thread: InferenceThread) -> None:
    one, other = Doubling(), Doubling()
    one.gate.clear()
    first = asyncio.create_task(thread.run(one, x(0)))
    await until(one.started.is_set)
    tasks = [asyncio.create_task(thread.run(runtime, x(i))) for i, runtime in enumerate([one, other, one, other], 1)]
    await until(lambda: thread.load.queued_rows == 5)
    one.gate.set()
    assert [(await task)["y"].tolist() for task in tasks] == [[2], [4], [6], [8]]
    await first
    assert (one.runs, other.runs) == ([[0], [1, 3]], [[2, 4]])


async def test_a_model_that_is_asked_much_leaves_each_other_one_its_turn() -> None:
    thread, order = InferenceThread(max_rows=2), list[str]()

    class Named(Doubling):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def compute(self, inputs: Arrays) -> Outputs:
            order.append(self.name)
            return super().compute(inputs)

    busy, quiet, third = (Named(name) for name in ("busy", "quiet", "third"))
    busy.gate.clear()
    tasks = [asyncio.create_task(thread.run(busy, x(0)))]
    await until(busy.started.is_set)
    tasks += [asyncio.create_task(thread.run(busy, x(i, i))) for i in range(5)]
    tasks += [asyncio.create_task(thread.run(one, x(9))) for one in (quiet, third, quiet)]
    await until(lambda: thread.load.queued_rows == 14)
    busy.gate.set()
    await asyncio.gather(*tasks)
    assert order == ["busy", "busy", "quiet", "third", "busy", "busy", "busy", "busy"]
    assert busy.runs == [[0], *([i, i] for i in range(5))]
    assert quiet.runs == [[9, 9]]
    await thread.close()


async def test_a_failure_reaches_only_the_callers_whose_rows_fail(thread: InferenceThread) -> None:
    runtime = Doubling(poison=3)
    tasks = await queued(thread, runtime, x(1, 2), x(3, 4), x(5))
    came = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(came[1], ArithmeticError)
    assert [came[i]["y"].tolist() for i in (0, 2)] == [[2, 4], [10]]  # type: ignore[index]  # the others are answers
    assert thread.load.failures == 2
    assert (await thread.run(runtime, x(7)))["y"].tolist() == [14]


async def test_inputs_that_do_not_fit_together_fail_alone(thread: InferenceThread) -> None:
    runtime = Doubling()
    odd = {"x": np.zeros((2, 5), np.int64)}
    tasks = await queued(thread, runtime, x(1), odd, {"z": np.zeros(1, np.int64)}, x(2))
    came = await asyncio.gather(*tasks, return_exceptions=True)
    assert [came[i]["y"].tolist() for i in (0, 3)] == [[2], [4]]  # type: ignore[index]  # these are answers
    assert isinstance(came[2], KeyError)


async def test_outputs_without_a_row_for_each_row_are_an_error(thread: InferenceThread) -> None:
    class Summing:
        def compute(self, inputs: Arrays) -> Outputs:
            return {"y": np.sum(inputs["x"], keepdims=True)}

    with pytest.raises(ValueError, match="output y has shape"):
        await thread.run(Summing(), x(1, 2))


async def test_a_caller_that_has_gone_costs_no_run_and_disturbs_nobody(thread: InferenceThread) -> None:
    runtime = Doubling()
    runtime.gate.clear()
    first = asyncio.create_task(thread.run(runtime, x(0)))
    await until(runtime.started.is_set)
    gone, stays = (asyncio.create_task(thread.run(runtime, x(i))) for i in (1, 2))
    await until(lambda: thread.load.queued_rows == 3)
    gone.cancel()
    first.cancel()
    await asyncio.gather(gone, first, return_exceptions=True)
    runtime.gate.set()
    assert (await stays)["y"].tolist() == [4]
    assert runtime.runs == [[0], [2]]
    assert thread.load.queued_rows == 0


async def test_a_small_call_waits_for_company_as_long_as_it_is_told_and_a_big_one_does_not() -> None:
    thread, runtime = InferenceThread(max_rows=4, max_delay_s=20.0), Doubling()
    async with asyncio.timeout(10):
        assert (await thread.run(runtime, x(1, 2, 3, 4)))["y"].tolist() == [2, 4, 6, 8]
        answers = await asyncio.gather(*(thread.run(runtime, x(i)) for i in range(4)))
    assert [answer["y"].tolist() for answer in answers] == [[0], [2], [4], [6]]
    assert runtime.runs == [[1, 2, 3, 4], [0, 1, 2, 3]]
    patient = asyncio.create_task(thread.run(runtime, x(5)))
    await until(lambda: thread.load.queued_rows == 1)
    await thread.close()
    assert (await patient)["y"].tolist() == [10]


async def test_close_finishes_what_was_accepted_and_takes_nothing_more() -> None:
    thread, runtime = InferenceThread(), Doubling()
    tasks = await queued(thread, runtime, x(1), x(2))
    await thread.close()
    await thread.close()
    assert [(await task)["y"].tolist() for task in tasks] == [[2], [4]]
    with pytest.raises(UsageError, match="closed"):
        await thread.run(runtime, x(3))


async def test_a_run_that_does_not_end_is_told_at_close() -> None:
    thread, runtime = InferenceThread(), Doubling()
    runtime.gate.clear()
    stuck = asyncio.create_task(thread.run(runtime, x(1)))
    await until(runtime.started.is_set)
    with pytest.raises(TimeoutError, match="still computes"):
        await thread.close(within_s=0.01)
    runtime.gate.set()
    assert (await stuck)["y"].tolist() == [2]
    await thread.close()


async def test_the_admission_hook_sees_the_load_and_may_refuse() -> None:
    seen: list[tuple[int, int, int, float]] = []

    class AtMostOne:
        def admit(self, rows: int, load: Load) -> None:
            seen.append((rows, load.queued_rows, load.failures, load.p95()))
            if load.queued_rows:
                raise BlockingIOError("busy")

    thread, runtime = InferenceThread(admission=AtMostOne()), Doubling(poison=9)
    with pytest.raises(ArithmeticError):
        await thread.run(runtime, x(9))
    runtime.gate.clear()
    first = asyncio.create_task(thread.run(runtime, x(1, 2)))
    await until(lambda: thread.load.queued_rows == 2)
    with pytest.raises(BlockingIOError):
        await thread.run(runtime, x(3))
    runtime.gate.set()
    await first
    await thread.close()
    assert [entry[:3] for entry in seen] == [(1, 0, 0), (2, 0, 1), (1, 2, 1)]
    assert seen[0][3] == 0.0
    assert seen[1][3] > 0.0
    assert len(runtime.runs) == 2


async def test_inputs_that_disagree_in_rows_never_reach_the_thread(thread: InferenceThread) -> None:
    runtime = Doubling()
    for inputs in ({}, {"x": np.zeros(2), "y": np.zeros(3)}):
        with pytest.raises(ValueError, match="one number of rows"):
            await thread.run(runtime, inputs)
    assert runtime.runs == []


TABLE = np.random.default_rng(1).dirichlet([1, 1], size=50).astype(np.float32)


@pytest.fixture(scope="module")
def table_model(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """Answers with the row of TABLE that its input names; a run fails as a whole when one of its rows names none."""
    inputs: dict[str, Any] = {"X": {"dtype": "int64", "fields": ["value"]}}
    made = folder(tmp_path_factory.mktemp("store"), lookup(TABLE.tolist()), inputs=inputs)
    return ModelFolder.open(made, "churn", "1")


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=40),
    max_rows=st.integers(1, 20),
    bad=st.sets(st.integers(0, 39), max_size=4),
)
def test_whatever_is_merged_each_caller_gets_the_answer_to_its_rows(
    table_model: ModelFolder, sizes: list[int], max_rows: int, bad: set[int]
) -> None:
    async def scenario() -> None:
        thread = InferenceThread(max_rows=max_rows)
        model = Runtime(table_model, Device.of("cpu"), thread)
        picks = [np.arange(i, i + size, dtype=np.int64)[:, None] % 50 for i, size in enumerate(sizes)]
        for i in bad & set(range(len(sizes))):
            picks[i][-1] = 1000
        came = await asyncio.gather(*(model.run({"X": pick}) for pick in picks), return_exceptions=True)
        for i, (pick, answer) in enumerate(zip(picks, came, strict=True)):
            if i in bad:
                assert isinstance(answer, Exception)
            else:
                assert not isinstance(answer, BaseException)
                assert np.array_equal(answer["probabilities"], TABLE[pick[:, 0]])
        await thread.close()

    asyncio.run(scenario())


async def test_the_way_there_and_back_is_short(thread: InferenceThread) -> None:
    """Generous beside what is measured (some 50 us): other work may share the machine."""
    runtime = Doubling()
    took = []
    for _ in range(500):
        began = time.perf_counter()
        await thread.run(runtime, x(1))
        took.append(time.perf_counter() - began)
    assert statistics.median(took) < 0.002
