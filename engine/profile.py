"""Where the worker's CPU goes, by part, sampled. Off unless HOMUNCULUS_PROFILE names a file.

A sample is told with the Python line that runs at it, or next: what uvloop does between two lines counts to the second.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Final

EVERY_S: Final = 0.002
"""CPU seconds, of all threads, between samples."""
PARTS: Final[tuple[tuple[str, str, str], ...]] = (
    ("engine/agent.py", "_decode_slice", "decode"),
    ("agents/plan.py", "fold", "fold"),
    ("agents/drift.py", "", "detect"),
    ("agents/scores.py", "", "detect"),
    ("tables/drift.py", "", "detect"),
    ("models/drift/", "", "detect"),
    ("tables/", "", "fold"),
    ("engine/columns.py", "take", "commit"),
    ("engine/columns.py", "", "fold"),
    ("agents/scoring.py", "_stage", "encode"),
    ("agents/plan.py", "predict", "model"),
    ("models/", "", "model"),
    ("engine/outputs.py", "", "produce"),
    ("engine/producer.py", "", "produce"),
    ("aiokafka/producer/", "", "produce"),
    ("aiokafka/consumer/", "", "consume"),
    ("engine/transport.py", "", "consume"),
    ("engine/changelog.py", "", "commit"),
    ("engine/store.py", "", "commit"),
    ("engine/table.py", "", "commit"),
    ("engine/task.py", "", "commit"),
    ("engine/committer.py", "", "commit"),
    ("agents/scoring.py", "", "encode"),
)
"""File, function, part: the innermost frame that matches decides; an empty function is any."""
INFERENCE: Final = "inference"
"""Name of the thread that computes models."""
REST: Final = "rest (asyncio, Faust, sockets)"
OTHERS: Final = "other threads (RocksDB)"


class Profile:
    """A timer of CPU time that asks at each tick where the main thread is. Others are asked for their own clocks.

    What it writes is in laps: one ends, and the next begins, whenever the process is continued (SIGCONT). So whoever
    holds a worker until its load is there has a lap of that load alone.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._laps: list[dict[str, object]] = []
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._samples = 0
        self._clocks = (0.0, 0.0, 0.0)
        """Of the process, its main thread and its inference threads, when the lap began."""
        self._last = 0.0
        """The main thread's, at the last sample."""
        self._known: dict[tuple[str, str], str | None] = {}

    def start(self) -> None:
        """Begins to sample; in the main thread."""
        if self._path and threading.current_thread() is threading.main_thread():
            self._begin_lap()
            signal.signal(signal.SIGCONT, lambda number, frame: self._end_lap())
            signal.signal(signal.SIGPROF, self._sample)
            signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)

    def write(self) -> None:
        """Writes seconds of CPU by part, a lap each, as JSON, and stops."""
        if self._path and self._last:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self._end_lap()
            self._path.write_text(json.dumps({"laps": self._laps}))
            self._path = None

    def _begin_lap(self) -> None:
        self._clocks = time.process_time(), time.thread_time(), _inference_s()
        self._last = self._clocks[1]
        self._seconds, self._samples = defaultdict(float), 0

    def _end_lap(self) -> None:
        process, main, inference = self._clocks
        cpu, computed = time.process_time() - process, _inference_s() - inference
        self._seconds[REST] += time.thread_time() - self._last
        self._seconds["model"] += computed
        self._seconds[OTHERS] += max(0.0, cpu - computed - (time.thread_time() - main))
        seconds = dict(sorted(self._seconds.items(), key=lambda part: -part[1]))
        self._laps.append({"cpu": cpu, "samples": self._samples, "seconds": seconds})
        self._begin_lap()

    def _sample(self, number: int, frame: FrameType | None) -> None:
        # A tick is of all threads together, so it tells when to look, and the main thread's own clock what to count.
        now = time.thread_time()
        spent, self._last = now - self._last, now
        self._samples += 1
        part: str | None = None
        while frame is not None and part is None:
            part = self._part(frame.f_code.co_filename, frame.f_code.co_name)
            frame = frame.f_back
        self._seconds[part or REST] += spent

    def _part(self, file: str, function: str) -> str | None:
        key = (file, function)
        if key not in self._known:
            self._known[key] = next(
                (part for path, name, part in PARTS if f"/{path}" in file and name in ("", function)), None
            )
        return self._known[key]


def _inference_s() -> float:
    """Seconds of CPU that the inference threads have had so far."""
    idents = [thread.ident for thread in threading.enumerate() if thread.name.startswith(INFERENCE)]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in idents if ident is not None)
