"""A language model's sessions: what a turn costs on top of what is held, and what decoding does to the event loop.

Needs no broker. LLAMA_PYTHON may name a Python with llama-cpp-python (and BENCH_THREADS how many threads both sides
take, 1 by default): then llama.cpp does the same on the same weights, turn by turn with ours.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.host import Steal
from benchmarks.lab import Lab
from benchmarks.registry import Result, benchmark
from examples.chat.model import Weights, gguf, version
from models.decoder import BlockFolder, Decoder, Sampling, Sizes, Turn
from models.decoder.blocks import Packing
from models.decoder.network import Slab
from models.decoder.proving import prefill
from models.device import Device

HISTORY: Final = 512
NEW: Final = 32
TABLE: Final = (64, 128, 256, 512, 1024, 2016)
GOALS: Final = {"fp32": ">= 9", "int4": ">= 12"}
ROUNDS: Final = 5
TALKS: Final = 3
THREADS: Final = int(os.environ.get("BENCH_THREADS", "1"))
LLAMA: Final = os.environ.get("LLAMA_PYTHON")
CLOCK: Final = time.thread_time if THREADS == 1 else time.perf_counter
"""One thread's own processor time doesn't tell of other people's work."""


@benchmark
def decoder(_: Lab) -> Iterator[Result]:
    """A turn of 32 tokens on top of a history against all of it anew, decoding of 1 and 8 sessions, the loop's lag."""
    weights: tuple[Weights, ...] = ("fp32", "int4")
    for form in weights:
        steal = Steal()
        with tempfile.TemporaryDirectory() as folder:
            made = Decoder(
                version(form),
                Device.of("cpu"),
                Sizes(slots=8, window=2048, threads=THREADS),
                BlockFolder(Path(folder), 1 << 30),
            )
            try:
                results = [*_turns(made, form), *_decoding(made, form), *_blocks(made, form, Path(folder) / "saved")]
                results += asyncio.run(_lag(made, form))
                results += asyncio.run(_conversation(made, form))
            finally:
                made.close()
                made.join()
        for result in results:
            shown: dict[str, Any] = {
                "clock": CLOCK.__name__,
                "threads": THREADS,
                "rounds": ROUNDS,
                "steal_percent": steal.since_last(),
                "load_average": os.getloadavg()[0],
            }
            yield Result(result.name, result.value, result.unit, shown, result.parts, result.goal)
    if LLAMA is not None:
        yield from _peer()


def _best(measure: Callable[[], object], before: Callable[[], object] = lambda: None, rounds: int = ROUNDS) -> float:
    """Seconds of the quickest round."""
    taken = []
    for _ in range(rounds):
        before()
        began = CLOCK()
        measure()
        taken.append(CLOCK() - began)
    return min(taken)


def _random(size: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(1).integers(20, 40_000, size)]


def _cut(slab: Slab, slot: int, length: int) -> None:
    slab.lengths[slot] = length


def _turns(made: Decoder, form: Weights) -> list[Result]:
    slab, tokens, parts, ratios = made._loop._slab, _random(2048), {}, {}
    for history in TABLE:
        whole = _best(
            partial(prefill, slab, 0, tokens[: history + NEW]),
            partial(_cut, slab, 0, 0),
            ROUNDS if history <= HISTORY else 2,
        )
        turn = _best(
            partial(prefill, slab, 0, tokens[history : history + NEW]),
            partial(_cut, slab, 0, history),
        )
        parts[f"{history} + {NEW}, all, ms"], parts[f"{history} + {NEW}, new, ms"] = 1e3 * whole, 1e3 * turn
        ratios[history] = whole / turn
    slab.clear(0)
    name = f"second turn of {NEW} on {HISTORY}, {form}"
    return [Result(name, ratios[HISTORY], "times cheaper than all of it", {}, parts, GOALS[form])]


def _decoding(made: Decoder, form: Weights) -> list[Result]:
    slab, tokens = made._loop._slab, _random(HISTORY)
    prefill(slab, 0, tokens)
    for slot in range(1, 8):
        slab.copy(0, slot, 0, HISTORY)

    def step(rows: int) -> float:
        def back() -> None:
            slab.lengths[:] = HISTORY

        return _best(lambda: slab.run(np.full((rows, 1), 5, np.int64), 0, list(range(rows))), back, 20)

    rates = {rows: rows / step(rows) for rows in (1, 2, 4, 8)}
    for slot in range(8):
        slab.clear(slot)
    parts = {f"{rows} sessions, tokens/s": rate for rows, rate in rates.items()}
    return [
        Result(
            f"decoding 8 sessions, {form}",
            rates[8] / rates[1],
            "times the tokens of one session",
            {},
            parts,
            ">= 3" if form == "fp32" else None,
        )
    ]


def _blocks(made: Decoder, form: Weights, folder: Path) -> list[Result]:
    """Of one session, from memory to memory, as llama.cpp does it, and with files."""
    slab = made._loop._slab
    prefill(slab, 0, _random(HISTORY))
    packing, blocks = Packing(slab), BlockFolder(folder, 1 << 30)
    count = HISTORY // 64
    keys = [bytes([block]) * 32 for block in range(count)]

    def save() -> None:
        for block in range(count):
            packing.pack(0, block, exact=False)

    def restore() -> None:
        for block in range(count):
            packing.unpack(1, block, raw)

    def write() -> None:
        for block, key in enumerate(keys):
            blocks.put(key, packing.pack(0, block, exact=False), "ann")

    def read() -> None:
        for block, key in enumerate(keys):
            found = blocks.get(key, packing.buffer)
            assert found is not None
            packing.unpack(1, block, found)

    saved, raw = 1e3 * _best(save, rounds=10), packing.pack(0, 0, exact=False)
    restored = 1e3 * _best(restore, rounds=10)
    files = {"with files, ms": 1e3 * _best(write, lambda: blocks.forget("ann"), 10)}
    results = [
        Result(f"saving {HISTORY} tokens, {form}", saved, "ms", {}, files, "<= 10"),
        Result(
            f"restoring {HISTORY} tokens, {form}",
            restored,
            "ms",
            {},
            {"with files, ms": 1e3 * _best(read, rounds=10)},
            "<= 5",
        ),
    ]
    slab.clear(0)
    slab.clear(1)
    return results


async def _lag(made: Decoder, form: Weights) -> list[Result]:
    """How late the loop is, asked every 2 ms, while 7 sessions decode and others' contexts are computed; and what the
    decoder's thread does beside computing, when the interpreter is its own: that bounds what the loop waits for it."""
    late: list[float] = []
    quiet: list[float] = []

    async def ask(into: list[float], end: asyncio.Event) -> None:
        while not end.is_set():
            began = time.perf_counter()
            await asyncio.sleep(0.002)
            into.append(time.perf_counter() - began - 0.002)

    computing = [0.0]
    slab = made._loop._slab
    run = slab.run

    def timed(*given: Any) -> Any:
        began = time.thread_time()
        try:
            return run(*given)
        finally:
            computing[0] += time.thread_time() - began

    slab.run = timed  # type: ignore[method-assign, assignment]
    before, ticks = await made._ask(time.thread_time), made._loop._tick
    for into, busy in ((quiet, False), (late, True)):
        end = asyncio.Event()
        asking = asyncio.ensure_future(ask(into, end))
        if busy:
            long = Sampling(max_tokens=60, temperature=0.9, top_p=0.95, seed=1, repetition_penalty=1.1)
            turns = [Turn(session=f"s{n}", tokens=tuple(_random(256)[n * 8 :]), sampling=long) for n in range(7)]
            turns += [
                Turn(session=f"p{n}", tokens=tuple(_random(600)[n:]), sampling=Sampling(max_tokens=2)) for n in range(4)
            ]
            await asyncio.gather(*(made.submit(turn).result() for turn in turns))
        else:
            await asyncio.sleep(2)
        end.set()
        await asking
    own = await made._ask(time.thread_time) - before - computing[0]
    slab.run = run  # type: ignore[method-assign]
    parts = {
        "idle p99, ms": 1e3 * float(np.quantile(quiet, 0.99)),
        "p50, ms": 1e3 * float(np.quantile(late, 0.5)),
        "largest, ms": 1e3 * max(late),
        "a tick beside computing, CPU ms": 1e3 * own / (made._loop._tick - ticks),
    }
    return [Result(f"the loop's lag, p99, {form}", 1e3 * float(np.quantile(late, 0.99)), "ms", {}, parts, "<= 10")]


async def _conversation(made: Decoder, form: Weights) -> list[Result]:
    """To the first token of turns 2 to 30 of a conversation inside 1,024 tokens: flat. The thread's own time, which
    other people's work doesn't lengthen, and by the clock; the middle one of several conversations."""
    talks = sorted([await _talk(made, n) for n in range(TALKS)])
    ratio, early, later, clocks = talks[TALKS // 2]
    parts = {"turns 2 to 9, CPU ms": early, "turns 23 to 30, CPU ms": later, "by the clock, times": clocks}
    parts |= {f"conversation {n + 1}": talk[0] for n, talk in enumerate(talks)}
    return [Result(f"first token of late turns, {form}", ratio, "times that of early ones", {}, parts, "<= 1.25")]


async def _talk(made: Decoder, n: int) -> tuple[float, float, float, float]:
    """Late turns' time over early ones', both, and the same ratio by the clock. n: its tokens are none of another's."""
    context, clocks, firsts = tuple(_random(100 + n)[n:]), list[float](), list[float]()
    for turn in range(30):
        before = await made._ask(time.thread_time)
        asked = Turn(session=f"talk{n}", tokens=context, sampling=Sampling(max_tokens=1))
        first = await made.submit(asked).result()
        if turn:
            firsts.append(1e3 * (await made._ask(time.thread_time) - before))
            clocks.append(1e3 * first.first_s)
        said = made.submit(Turn(session=f"talk{n}", tokens=context, sampling=Sampling(max_tokens=6)))
        await said.result()
        context = (*context, *said.tokens, *_random(24 + turn)[turn:])
    early, later = float(np.median(firsts[:8])), float(np.median(firsts[-8:]))
    return later / early, early, later, float(np.median(clocks[-8:]) / np.median(clocks[:8]))


def _peer() -> Iterator[Result]:
    """llama.cpp on the same file, round by round with ours in int4."""
    made = Decoder(version("int4"), Device.of("cpu"), Sizes(slots=8, window=1024, threads=THREADS))
    slab, tokens = made._loop._slab, _random(HISTORY + NEW)
    peer: dict[str, float] = {}
    ours: dict[str, float] = {}
    for _ in range(3):
        said = subprocess.run(
            [str(LLAMA), str(Path(__file__).parent / "llama_cpp_side.py"), str(gguf()), str(THREADS)],
            input=json.dumps(tokens),
            check=True,
            capture_output=True,
            text=True,
        )
        for name, value in json.loads(said.stdout).items():
            peer[name] = min(value, peer.get(name, value))
        measured = {
            "prefill of 512": _best(lambda: prefill(slab, 0, tokens[:HISTORY]), lambda: _cut(slab, 0, 0), 2),
            "32 on 512": _best(lambda: prefill(slab, 0, tokens[HISTORY:]), lambda: _cut(slab, 0, HISTORY), 3),
            "one token": _best(lambda: slab.run(np.array([[5]]), 0, [0]), lambda: _cut(slab, 0, HISTORY), 20),
        }
        _cut(slab, 0, HISTORY)
        for slot in range(1, 8):
            slab.copy(0, slot, 0, HISTORY)

        def back() -> None:
            slab.lengths[:] = HISTORY

        measured["8 sessions, a token each"] = _best(
            lambda: slab.run(np.full((8, 1), 5, np.int64), 0, list(range(8))), back, 10
        )
        for name, value in measured.items():
            ours[name] = min(value, ours.get(name, value))
    made.close()
    made.join()
    goals = {"prefill of 512": ">= 1.5", "32 on 512": ">= 2", "one token": ">= 1", "8 sessions, a token each": ">= 1.2"}
    for name, goal in goals.items():
        parts = {"ours, ms": 1e3 * ours[name], "llama.cpp, ms": 1e3 * peer[name]}
        yield Result(
            f"llama.cpp: {name}",
            peer[name] / ours[name],
            "times ours",
            {"threads": THREADS, "clock": CLOCK.__name__},
            parts,
            goal,
        )
