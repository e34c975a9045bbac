"""What a language model in the worker costs the events that are scored beside it."""

from __future__ import annotations

import shutil
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

import msgspec
import numpy as np

from benchmarks import model
from benchmarks.lab import Lab, Run
from benchmarks.latency import COMMIT_S, NOTHING, SHOWN, Answered, measure, start, warm_broker
from benchmarks.load import START_MS, Load, Publisher
from benchmarks.reader import Reader
from benchmarks.registry import Result, benchmark
from core.settings import Guarantee
from core.topics import CONTROL, MESSAGES, PREDICTIONS, REPLIES
from examples.chat.model import NAME, store

EVENTS: Final = 2_000
TALKS: Final = 4
"""Sessions, each of which asks again as soon as it has its reply."""
TOKENS: Final = 64
"""Of a reply."""
WEIGHTS: Final = "int4"
ROUNDS: Final = 3
SAID: Final = ("stop", "length")
"""How a reply ends that is one."""
REPLY_S: Final = 120.0
QUESTION: Final = "Tell me about the sea, the wind and a ship that sails from one harbour to another."


class Told(msgspec.Struct):
    """What a talk needs of a reply."""

    session: str
    final: bool = False
    finish: str | None = None
    why: str | None = None
    usage: dict[str, float] | None = None


class Talks:
    """Sessions that talk with a language model inside a `with` block, which ends when the last reply is there."""

    def __init__(self, lab: Lab, run: Run, replies: Reader) -> None:
        self._publisher = Publisher(lab.bootstrap, linger_ms=0)
        self._messages = run.topic(MESSAGES.name)
        self._reader = replies
        self._decode = msgspec.json.Decoder(Told).decode
        self._ending = threading.Event()
        self._failed: Exception | None = None
        self._asked = 0
        self.replies = 0
        self.tokens = 0.0

    def ask(self, session: str) -> None:
        """One question; the broker has it when this returns."""
        self._asked += 1
        message = {
            "id": f"q{self._asked}",
            "session": session,
            "ts": START_MS + self._asked,
            "text": QUESTION,
            "options": {"max_tokens": TOKENS, "temperature": 0},
        }
        self._publisher.publish(self._messages, [(session.encode(), msgspec.json.encode(message))])

    def hear(self) -> list[str]:
        """Sessions whose replies have ended since."""
        ended = []
        for told in map(self._decode, self._reader.take(0.1)[1]):
            if told.final:
                if told.finish not in SAID:
                    raise RuntimeError(f"a reply ended with {told.finish}: {told.why}")
                ended.append(told.session)
                self.replies += 1
                self.tokens += (told.usage or {}).get("completion_tokens", 0)
        return ended

    def __enter__(self) -> Self:
        self._ending.clear()
        self._thread = threading.Thread(target=self._talk)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ending.set()
        self._thread.join()
        if self._failed is not None and kind is None:
            raise self._failed

    def _talk(self) -> None:
        try:
            waiting = {f"talk{n}" for n in range(TALKS)}
            for session in waiting:
                self.ask(session)
            last = time.monotonic()
            while waiting:
                for session in self.hear():
                    last = time.monotonic()
                    waiting.discard(session)
                    if not self._ending.is_set():
                        waiting.add(session)
                        self.ask(session)
                if time.monotonic() - last > REPLY_S:
                    raise TimeoutError(f"no reply within {REPLY_S:.0f} s")
        except Exception as error:
            self._failed = error


@benchmark
def chatting(lab: Lab) -> Iterator[Result]:
    """2,000 events/s are scored while four sessions talk with SmolLM2-135M in the same worker: the events' p99 in ms,
    with and without; rounds alternate on the same worker, and the one in the middle is the figure."""
    warm_broker(lab)
    answered = msgspec.json.Decoder(Answered).decode
    shutil.copytree(store(WEIGHTS) / NAME / WEIGHTS, lab.store / NAME / WEIGHTS)
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    steal: list[tuple[float | None, float | None]] = []
    with lab.run("chatting") as run, ExitStack() as stack:
        asked = NAME.encode(), msgspec.json.encode({"active": WEIGHTS})
        Publisher(lab.bootstrap).publish(run.topic(CONTROL.name), [asked])
        worker = start(lab, run, Guarantee.EXACTLY_ONCE, stack, DEFAULT_MODEL=model.NAME)
        replies = Reader(lab.bootstrap, run.topic(REPLIES.name), lab.partitions, keep=False)
        talks = Talks(lab, run, stack.enter_context(replies))
        talks.ask("warm")
        worker.wait_until(lambda: "warm" in talks.hear(), REPLY_S, "reply")
        talks.replies, talks.tokens, spoken_s = 0, 0.0, 0.0
        for _ in range(ROUNDS):
            taken = []
            for beside in (NOTHING, talks):
                lab.steal.since_last()
                began = time.monotonic()
                ms, _ = measure(lab, run, PREDICTIONS.name, EVENTS, lambda raw: answered(raw).event_id, beside)
                taken.append((ms, lab.steal.since_last()))
                spoken_s += (time.monotonic() - began) * (beside is talks)
            pairs.append((taken[0][0], taken[1][0]))
            steal.append((taken[0][1], taken[1][1]))
    p99 = [(float(np.percentile(alone, 99)), float(np.percentile(beside, 99))) for alone, beside in pairs]
    times = [beside / alone for alone, beside in p99]
    middle = times.index(statistics.median_low(times))
    parts = {
        f"{name} {which}": float(np.percentile(ms, p))
        for which, ms in zip(("without", "with"), pairs[middle], strict=True)
        for name, p in SHOWN.items()
    }
    yield Result(
        f"chatting: {EVENTS:,} events/s beside {TALKS} talks",
        times[middle],
        "times the p99 without them",
        lab.conditions(
            weights=WEIGHTS,
            commit_interval_s=COMMIT_S,
            sessions=Load().sessions,
            p99_of_rounds=[(round(alone, 1), round(beside, 1)) for alone, beside in p99],
            steal_percent_of_rounds=steal,
            replies=talks.replies,
            tokens_per_s=round(talks.tokens / spoken_s, 1),
        ),
        parts,
        "<= 2",
    )
