"""Where the worker's time goes, by part. Off unless HOMUNCULUS_PROFILE names a file."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path


class Profile:
    """Cumulative seconds of each part, and how often it ran. A part must not await: others would be in its time."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.counts: defaultdict[str, int] = defaultdict(int)

    @classmethod
    def from_environment(cls) -> Profile:
        """As HOMUNCULUS_PROFILE says."""
        path = os.environ.get("HOMUNCULUS_PROFILE")
        return cls(Path(path) if path else None)

    def part(self, name: str) -> AbstractContextManager[None]:
        """Times the block under a name."""
        return self._timed(name) if self._path else _NOTHING

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - began
            self.counts[name] += 1

    def write(self) -> None:
        """Writes what was measured, as JSON."""
        if self._path:
            cpu = time.process_time()
            self._path.write_text(json.dumps({"seconds": self.seconds, "counts": self.counts, "cpu": cpu}))


_NOTHING = nullcontext()
