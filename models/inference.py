"""One thread for each device, which computes for all runtimes: the event loop keeps its heartbeats."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from core.errors import UsageError
from models.engine import Admission, Array, Arrays, rows_of
from models.nice import step_back

log = logging.getLogger(__name__)

Outputs = dict[str, Array]
REMEMBERED: Final = 256
"""Runs whose time the 95th percentile is taken over."""


class Computes(Protocol):
    """What the thread needs of a runtime."""

    def compute(self, inputs: Arrays) -> Outputs:
        """Computes all outputs, one row for each row of the inputs; called on the thread."""


@dataclass(slots=True, eq=False)
class _Call:
    """One caller's rows, on their way through the thread and back."""

    runtime: Computes
    inputs: Arrays
    rows: int
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Outputs]
    began: float
    came: Outputs | Exception | None = None
    """What its rows led to; None until they have been computed, and for ever when the caller has gone."""

    def settle(self) -> None:
        """On the caller's loop: hands it what came of its rows, unless it has gone."""
        if self.answer.done() or self.came is None:
            return
        if isinstance(self.came, Exception):
            self.answer.set_exception(self.came)
        else:
            self.answer.set_result(self.came)


@dataclass(slots=True)
class _Load:
    """How busy the thread is. Written by the loop and the thread, each its own fields."""

    joined: int = 0
    left: int = 0
    failures: int = 0
    times: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    @property
    def queued_rows(self) -> int:
        return self.joined - self.left

    def p95(self) -> float:
        times = list(self.times)
        return float(np.percentile(times, 95)) if times else 0.0


class InferenceThread:
    """Takes calls from event loops, merges those that wait for the same runtime, computes, hands back the parts.

    Calls for one runtime are computed in the order in which they came; runtimes that are asked take turns, a run each,
    so that one that is asked much holds none up for longer than that. A failing run is repeated call by call, so
    that a failure reaches only the callers whose own rows fail.
    """

    def __init__(
        self,
        name: str = "inference",
        max_rows: int = 4096,
        max_delay_s: float = 0.0,
        admission: Admission | None = None,
        nice: int = 0,
    ) -> None:
        """max_rows: most rows of a merged run; one call with more is computed whole. max_delay_s: how long a call
        that is smaller waits for company; 0 merges what waits already and delays nobody. nice: by how much the
        thread lets others pass, where the system can do so for one thread."""
        self.max_rows = max_rows
        self.max_delay_s = max_delay_s
        self.load = _Load()
        self._admission = admission
        self._arriving: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._waiting: dict[int, deque[_Call]] = {}
        """By the runtime's id, the one whose turn it is first."""
        self._closing = False
        self._ended = False
        self._nice = nice
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def run(self, runtime: Computes, inputs: Arrays) -> Outputs:
        """Computes the rows on the thread. Returns this call's rows alone.

        Raises whatever the runtime raises for them, what the admission hook raises, UsageError after close, and
        ValueError when the inputs disagree in their number of rows.
        """
        rows = rows_of(inputs)
        if self._closing:
            raise UsageError("the inference thread is closed; nothing more is computed on it")
        if self._admission is not None:
            self._admission.admit(rows, self.load)
        loop = asyncio.get_running_loop()
        call = _Call(runtime, inputs, rows, loop, loop.create_future(), time.perf_counter())
        self.load.joined += rows
        self._arriving.put(call)
        return await call.answer

    async def close(self, within_s: float = 10.0) -> None:
        """Computes what has been accepted, then ends the thread. Raises TimeoutError when that takes longer."""
        if not self._closing:
            self._closing = True
            self._arriving.put(None)
        await asyncio.to_thread(self._thread.join, within_s)
        if self._thread.is_alive():
            raise TimeoutError(f"thread {self._thread.name} still computes after {within_s} s")

    def _work(self) -> None:
        step_back(self._nice)
        while (calls := self._next()) is not None:
            self._compute(calls)
            self._deliver(calls)

    def _next(self) -> list[_Call] | None:
        """The oldest call of the runtime whose turn it is, and those that may join it; None at the end."""
        if not self._waiting and not self._ended:
            self._arrived(self._arriving.get())
        while not self._ended and not self._arriving.empty():
            self._arrived(self._arriving.get())
        if not self._waiting:
            return None
        turn = next(iter(self._waiting))
        calls = [self._waiting[turn].popleft()]
        rows = self._join(calls, calls[0].rows)
        until = calls[0].began + self.max_delay_s
        while rows < self.max_rows and not self._ended and (left := until - time.perf_counter()) > 0:
            try:
                self._arrived(self._arriving.get(timeout=left))
            except queue.Empty:
                break
            rows = self._join(calls, rows)
        if rest := self._waiting.pop(turn):
            self._waiting[turn] = rest
        return calls

    def _arrived(self, call: _Call | None) -> None:
        if call is None:
            self._ended = True
        else:
            self._waiting.setdefault(id(call.runtime), deque()).append(call)

    def _join(self, calls: list[_Call], rows: int) -> int:
        """Moves waiting calls of the same runtime into the run, oldest first, until one doesn't fit."""
        ours = self._waiting[id(calls[0].runtime)]
        while ours and rows + ours[0].rows <= self.max_rows:
            calls.append(ours.popleft())
            rows += calls[-1].rows
        return rows

    def _compute(self, calls: Sequence[_Call]) -> None:
        """Computes the calls as one run; when that fails, each as a run of its own."""
        wanted = [call for call in calls if not call.answer.cancelled()]
        try:
            if wanted:
                _split(wanted, wanted[0].runtime.compute(_merged(wanted)))
        except Exception as error:
            self.load.failures += 1
            if len(wanted) == 1:
                wanted[0].came = error
                return
            log.warning("a run of %d calls failed and is repeated call by call: %r", len(wanted), error)
            for call in wanted:
                self._compute([call])

    def _deliver(self, calls: Sequence[_Call]) -> None:
        now = time.perf_counter()
        for loop in {call.loop for call in calls}:
            ours = [call for call in calls if call.loop is loop]
            self.load.left += sum(call.rows for call in ours)
            self.load.times.extend(now - call.began for call in ours)
            try:
                loop.call_soon_threadsafe(_settle, ours)
            except RuntimeError:
                log.info("%d calls were computed for an event loop that is closed", len(ours))


def _settle(calls: Sequence[_Call]) -> None:
    for call in calls:
        call.settle()


def _merged(calls: Sequence[_Call]) -> Arrays:
    if len(calls) == 1:
        return calls[0].inputs
    if any(call.inputs.keys() != calls[0].inputs.keys() for call in calls):
        raise ValueError("calls for one runtime name different inputs")
    return {name: np.concatenate([call.inputs[name] for call in calls]) for name in calls[0].inputs}


def _split(calls: Sequence[_Call], outputs: Outputs) -> None:
    """Gives each call its rows. Raises ValueError when an output hasn't one row for each row that went in."""
    rows = sum(call.rows for call in calls)
    for name, array in outputs.items():
        if array.shape[:1] != (rows,):
            raise ValueError(
                f"output {name} has shape {array.shape} for {rows} rows; its rows must be the inputs' rows"
            )
    if len(calls) == 1:
        calls[0].came = outputs
        return
    begin = 0
    for call in calls:
        call.came = {name: array[begin : begin + call.rows] for name, array in outputs.items()}
        begin += call.rows
