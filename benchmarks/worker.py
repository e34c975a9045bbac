"""A worker as its operating system sees it: started, held, measured by /proc, stopped; ours and the rival's alike."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

TICKS: Final = os.sysconf("SC_CLK_TCK")
STOP_S: Final = 60.0
CALM: Final = 0.2
"""Of one core: a worker below it has nothing left to do."""
NOT_INHERITED: Final = ("HOMUNCULUS_", "FAUST_", "BENCH_", "PYTHONDONTWRITEBYTECODE")
"""Beginnings of variables that would make it another worker; the last one makes Python compile it at every start."""


class WorkerFailedError(Exception):
    """The worker ended, or didn't get anywhere in time; the message ends with the tail of its log."""


class Worker:
    """One process, and what it started. As a context manager it runs inside the `with` block alone."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: Path, folder: Path) -> None:
        self.log = log
        self._command = list(command)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(NOT_INHERITED)}
        self._environment = inherited | environment
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for what is left of its process group a minute later."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @property
    def url(self) -> str:
        """Where its views are, of one of ours."""
        return f"http://127.0.0.1:{self._environment['HOMUNCULUS_WEB_PORT']}"

    def kill(self) -> None:
        """SIGKILL, for it and what it started."""
        process, self._process = self._running, None
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def hold(self) -> None:
        """Stops its clock while a topic is filled: seconds, far less than any session timeout."""
        self._running.send_signal(signal.SIGSTOP)

    def go(self) -> None:
        """Lets it run again."""
        self._running.send_signal(signal.SIGCONT)

    def cpu_s(self) -> float:
        """Seconds of CPU, user and system, of all its threads and children so far."""
        return sum(self._stat(pid) for pid in self._pids()) / TICKS

    def rss_mb(self) -> float:
        """Resident memory of it and its children, now."""
        return sum(_status_kb(pid, "VmRSS") for pid in self._pids()) / 1024

    def peak_mb(self) -> float:
        """The most that it and its children ever had resident, each at its own worst moment."""
        return sum(_status_kb(pid, "VmHWM") for pid in self._pids()) / 1024

    def open_files(self) -> int:
        """Files, sockets and pipes that it and its children hold."""
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in self._pids())

    def threads(self) -> int:
        """Threads of it and its children."""
        return sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in self._pids())

    def wait_until(self, done: Callable[[], bool], within_s: float, what: str) -> None:
        """Waits for a condition. Raises WorkerFailedError when the worker ends first, or the time does."""
        end = time.monotonic() + within_s
        while not done():
            if (rc := self._running.poll()) is not None:
                raise WorkerFailedError(f"the worker exited with {rc} before {what}:\n{self.tail()}")
            if time.monotonic() > end:
                raise WorkerFailedError(f"no {what} within {within_s:.0f} s:\n{self.tail()}")
            time.sleep(0.005)

    def wait_until_calm(self, within_s: float = 30) -> None:
        """Waits until it has used less than CALM of a core for half a second: warm-up, verifiers, checkpoints."""
        last, since = self.cpu_s(), time.monotonic()

        def calm() -> bool:
            nonlocal last, since
            now = time.monotonic()
            if now - since < 0.5:
                return False
            used, span = self.cpu_s() - last, now - since
            last, since = last + used, now
            return used / span < CALM

        self.wait_until(calm, within_s, "rest")

    def tail(self, lines: int = 30) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-lines:])

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise WorkerFailedError("the worker isn't running")
        return self._process

    def _pids(self) -> list[int]:
        """It and its descendants."""
        found, todo = [], [self._running.pid]
        while todo:
            pid = todo.pop()
            found.append(pid)
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                todo += [int(child) for child in _read(task).split()]
        return found

    def _stat(self, pid: int) -> int:
        """User and system ticks; 0 for a process that has just ended."""
        fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12]) if fields else 0


def _status_kb(pid: int, name: str) -> int:
    lines = _read(Path(f"/proc/{pid}/status")).splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def _read(path: Path) -> str:
    """A file under /proc; empty when its process has ended meanwhile."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
