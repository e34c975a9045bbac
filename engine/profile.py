"""Where the worker's CPU goes, by part, sampled. Off unless HOMUNCULUS_PROFILE names a file."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Final

EVERY_S: Final = 0.002
"""CPU seconds, of all threads, between samples."""
PARTS: Final[tuple[tuple[str, str, str], ...]] = (
    ("engine/agent.py", "_decode_slice", "decode"),
    ("agents/plan.py", "fold", "fold"),
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
REST: Final = "rest (asyncio, Faust, sockets)"


class Profile:
    """A timer of CPU time that asks at each tick where the main thread is."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._samples: Counter[str] = Counter()
        self._began = 0.0
        self._known: dict[tuple[str, str], str | None] = {}

    def start(self) -> None:
        """Begins to sample; in the main thread."""
        if self._path and threading.current_thread() is threading.main_thread():
            self._began = time.process_time()
            signal.signal(signal.SIGPROF, self._sample)
            signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)

    def write(self) -> None:
        """Writes seconds of CPU by part, as JSON, and stops."""
        if self._path and self._began:
            signal.setitimer(signal.ITIMER_PROF, 0)
            cpu = time.process_time() - self._began
            total = sum(self._samples.values()) or 1
            seconds = {part: cpu * count / total for part, count in self._samples.most_common()}
            self._path.write_text(json.dumps({"seconds": seconds, "samples": total, "cpu": cpu}))
            self._path = None

    def _sample(self, number: int, frame: FrameType | None) -> None:
        while frame is not None:
            part = self._part(frame.f_code.co_filename, frame.f_code.co_name)
            if part is not None:
                self._samples[part] += 1
                return
            frame = frame.f_back
        self._samples[REST] += 1

    def _part(self, file: str, function: str) -> str | None:
        key = (file, function)
        if key not in self._known:
            self._known[key] = next(
                (part for path, name, part in PARTS if f"/{path}" in file and name in ("", function)), None
            )
        return self._known[key]
