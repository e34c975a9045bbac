"""Whatever workers read of the deployments, in whatever order and however often, they come to the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from pydantic import ValidationError

from core.errors import ModelError, RequestRefusedError
from core.events import Action, Deployment
from models.device import Device
from models.folder import ModelFolder
from models.inference import InferenceThread
from models.live import LiveModels
from models.routing import Routing
from models.runtime import Runtime
from models.store import ModelStore, Progress
from models.swap import Stage
from models.version import LiveVersion
from tables.deployments import judge
from tests.unit.graphs import folder, linear

MODELS: Final = ("churn", "fraud")
VERSIONS: Final = ("1", "2", "3", "4")
MOST_WORKERS: Final = 3
MOST_HELD: Final = 2
"""Batches under way on a worker."""

P = ParamSpec("P")
R = TypeVar("R")

models = st.sampled_from(MODELS)
number = st.integers(0, 9)
"""Of a worker, or of what else there are some of: taken modulo how many there are."""
requests: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    # Most of them change who computes.
    action=st.sampled_from(
        ["deploy"] * 4 + ["canary"] * 3 + ["shadow", "rollback"] * 2 + ["promote", "freeze", "unfreeze", "unload"]
    ),
    author=st.just("ana"),
    version=st.none() | st.sampled_from(VERSIONS),
    share=st.sampled_from([None, 0.1, 0.5]),
    limits=st.sampled_from([None, None, {"min_agreement": 0.9}]),
    late=st.sampled_from([False, False, True]),
)


class AtOnce(ThreadPoolExecutor):
    """Work for threads is done where it is asked for, so that a run is the same each time; its result still comes a
    turn of the loop later."""

    def submit(self, call: Callable[P, R], /, *args: P.args, **options: P.kwargs) -> Future[R]:
        done: Future[R] = Future()
        try:
            done.set_result(call(*args, **options))
        except BaseException as error:
            done.set_exception(error)
        return done


class Moody(ModelStore):
    """A store that can't be reached for some versions."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.away: set[str] = set()

    def fetch(self, name: str, version: str, progress: Progress | None = None) -> ModelFolder:
        if version in self.away:
            raise ModelError(f"{name}@{version}: connection refused")
        return super().fetch(name, version, progress)


class Followed(LiveModels):
    """Those of a worker, and all that they ever loaded."""

    def __init__(self, store: ModelStore, thread: InferenceThread) -> None:
        super().__init__(store, Device.of("cpu"), thread)
        self.ever: list[LiveVersion] = []

    async def _load(self, *which: Any) -> LiveVersion:
        self.ever.append(loaded := await super()._load(*which))
        return loaded


class Worker:
    """One that follows the log, as agents/deployments.py does."""

    def __init__(self, root: Path, thread: InferenceThread) -> None:
        self.store = Moody(str(root))
        self.live = Followed(self.store, thread)
        self.at = 0
        """Where it reads on."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.held: list[tuple[ExitStack, Routing]] = []
        """Work in flight, and whom it began on."""

    async def converge(self, deployment: Deployment) -> None:
        try:
            await self.live.converge(deployment)
        except ModelError:
            return  # the worker tells; it is tried again later

    def spawn(self, deployment: Deployment) -> None:
        self.tasks.add(asyncio.ensure_future(self.converge(deployment)))

    async def settle(self) -> None:
        while self.tasks:
            await self.tasks.pop()

    async def try_again(self) -> None:
        for name in MODELS:
            if (wanted := self.live.wanted(name)) is not None:
                await self.converge(wanted)

    def finish(self, number: int) -> None:
        """Some work that is under way comes to its end, on whom it began on."""
        stack, routing = self.held.pop(number % len(self.held))
        for version in routing:
            engine = version.engine
            assert isinstance(engine, Runtime)
            scores = engine.compute({"X": np.zeros((1, 1), np.float32)})["probabilities"]
            assert round(float(scores[0, 1]), 3) == int(version.version) / 10
        stack.close()


class Fleet(RuleBasedStateMachine):
    """Requests are judged into a log; workers read it, each at its own pace."""

    def __init__(self, root: Path, thread: InferenceThread) -> None:
        super().__init__()
        self._root = root
        self._thread = thread
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(AtOnce())
        self._log: dict[int, Deployment] = {}
        """Offset -> what stands there. Compaction takes some away."""
        self._end = 0
        self._state: dict[str, Deployment] = {}
        """What the judge knows."""
        self._workers: list[Worker] = []

    @initialize()
    def first(self) -> None:
        for name in MODELS:
            self._judge(name, action="deploy", version="1")
        self._join()

    # One rule: hypothesis leaves whole rules out of many runs, and without these nothing happens.
    @rule(
        asked=st.lists(st.tuples(models, requests), max_size=4),
        number=number,
        records=st.integers(0, 4),
        again=st.none() | number,
        turns=st.integers(0, 12),
    )
    def ask_and_read(
        self, asked: list[tuple[str, dict[str, Any]]], number: int, records: int, again: int | None, turns: int
    ) -> None:
        """Some requests are judged; a worker reads on, perhaps sees a record a second time, and gets somewhere."""
        for model, request in asked:
            self._judge(model, **request)
        worker = self._worker(number)
        for offset in [offset for offset in sorted(self._log) if offset >= worker.at][:records]:
            self._follow(worker, self._log[offset])
            worker.at = offset + 1
        seen = [offset for offset in sorted(self._log) if offset < worker.at]
        if again is not None and seen:
            self._follow(worker, self._log[seen[again % len(seen)]])
        self._turn(turns)

    @rule(upto=st.integers(0, 40))
    def compact(self, upto: int) -> None:
        """Of each model, what is older than its newest record before `upto` goes."""
        newest = {deployment.model: offset for offset, deployment in sorted(self._log.items()) if offset < upto}
        for offset, deployment in list(self._log.items()):
            if offset < newest.get(deployment.model, 0):
                del self._log[offset]

    @rule(number=number)
    def join(self, number: int) -> None:
        """One more, or one in place of another."""
        if len(self._workers) == MOST_WORKERS:
            self._end_of(self._workers.pop(number % len(self._workers)))
        self._join()

    @rule(number=number, version=st.sampled_from(VERSIONS))
    def fail(self, number: int, version: str) -> None:
        self._worker(number).store.away.add(version)

    @rule(number=number)
    def mend(self, number: int) -> None:
        worker = self._worker(number)
        worker.store.away.clear()
        self._loop.run_until_complete(worker.try_again())

    @rule(number=number, model=models)
    def work(self, number: int, model: str) -> None:
        """A batch begins, or comes to its end."""
        worker = self._worker(number)
        if len(worker.held) == MOST_HELD:
            worker.finish(number)
        elif worker.live.get(model) is not None and model in worker.live.deployed():
            stack = ExitStack()
            worker.held.append((stack, stack.enter_context(worker.live.routed(model))))

    def teardown(self) -> None:
        try:
            self._assert_same()
        finally:
            for worker in self._workers:
                self._end_of(worker)
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def _assert_same(self) -> None:
        """Everything is read, every store is there: all workers do what the judge's state says, and nothing else."""
        self._join()
        for worker in self._workers:
            worker.store.away.clear()
            for offset in sorted(self._log):
                if offset >= worker.at:
                    self._follow(worker, self._log[offset])
            while worker.held:
                worker.finish(0)
            self._loop.run_until_complete(worker.settle())
            self._loop.run_until_complete(worker.try_again())
            assert {name: told(status) for name, status in worker.live.status().items()} == {
                name: wanted(deployment) for name, deployment in self._state.items()
            }
            computing = worker.live.versions()
            assert all(version.in_flight == 0 for version in computing)
            assert all(one in computing or one.course.stage is Stage.UNLOADED for one in worker.live.ever)
            for name in worker.live.models():
                with worker.live.routed(name) as routing:
                    assert routing.paired == ("min_agreement" in self._state[name].limits)

    def _join(self) -> None:
        """A new worker takes the newest of what is there, as one does before it takes traffic."""
        worker = Worker(self._root, self._thread)
        first = {deployment.model: deployment for _, deployment in sorted(self._log.items())}
        for deployment in first.values():
            self._loop.run_until_complete(worker.converge(deployment))
        worker.at = self._end
        self._workers.append(worker)

    def _end_of(self, worker: Worker) -> None:
        self._loop.run_until_complete(worker.settle())
        for stack, _ in worker.held:
            stack.close()
        worker.live.close()

    def _worker(self, number: int) -> Worker:
        return self._workers[number % len(self._workers)]

    def _judge(self, model: str, *, late: bool = False, **asked: Any) -> None:
        """Adds to the log what becomes of a request; late: it is based on what was so before."""
        now = self._state.get(model)
        try:
            action = Action(**asked, based_on=now.revision - 1 if now and late else None)
            accepted = judge(model, action, now, VERSIONS, 0)
        except (RequestRefusedError, ValidationError):
            return
        self._state[model] = self._log[self._end] = accepted
        self._end += 1

    def _follow(self, worker: Worker, deployment: Deployment) -> None:
        self._loop.call_soon(partial(worker.spawn, deployment))
        self._turn(1)

    def _turn(self, turns: int) -> None:
        async def turn() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        self._loop.run_until_complete(turn())


def told(status: dict[str, Any]) -> dict[str, Any]:
    """What a worker says that it does."""
    canary = status.get("canary", {})
    return {
        "active": status.get("version"),
        "canary": (canary.get("version"), canary.get("share")),
        "shadow": [shadow["version"] for shadow in status.get("shadow", [])],
        "revision": status["revision"],
        "frozen": status.get("frozen", False),
    } | {name: status[name] for name in ("loading", "draining", "error") if name in status}


def wanted(deployment: Deployment) -> dict[str, Any]:
    """What it must say."""
    canary = deployment.canary
    return {
        "active": deployment.active,
        "canary": (canary.version, canary.share) if canary else (None, None),
        "shadow": list(deployment.shadow),
        "revision": deployment.revision,
        "frozen": deployment.frozen,
    }


@pytest.mark.parametrize(
    "runs", [25, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(600)])], ids="{} runs".format
)
async def test_every_worker_comes_to_the_same_deployment_whatever_it_has_read_and_when(
    tmp_path: Path, runs: int
) -> None:
    for name in MODELS:
        for version in VERSIONS:
            folder(tmp_path, linear(w=0.0, b=int(version) / 10), name=name, version=version)
    thread = InferenceThread()
    try:
        await asyncio.to_thread(
            run_state_machine_as_test,
            cast(type[Fleet], partial(Fleet, tmp_path, thread)),
            settings=settings(
                max_examples=runs, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
            ),
        )
    finally:
        await thread.close()
