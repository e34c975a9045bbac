"""A worker as users run it: `faust -A app worker` in a process of its own, that tests can kill, stop and question."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

ROOT: Final = Path(__file__).parent.parent
FIRST_PORT: Final = 23000 + 100 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
PORTS: Final = range(FIRST_PORT, FIRST_PORT + 100)
"""Below the ports that the system lends to clients, and this process' own, so that one found free stays free until its
server starts."""
_turn = itertools.count(os.getpid())


class NotInTimeError(AssertionError):
    """What had to become true did not, within its limit."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an HTTP route answered; status 0 when nobody listens."""

    status: int
    text: str
    retry_after: str | None = None
    staleness_ms: str | None = None

    def json(self) -> Any:
        """The body, decoded. Raises AssertionError with the body when it isn't JSON."""
        try:
            return json.loads(self.text)
        except ValueError:
            raise AssertionError(f"not JSON, status {self.status}: {self.text[:500]!r}") from None


class Worker:
    """One worker process, which may be started, ended and started again under the same name and data folder.

    environment holds every HOMUNCULUS_* variable it gets; those of the test run itself don't reach it. arguments
    follow `worker`; through is a command that runs the worker, like nice. Its log goes to folder/NAME.log, all starts
    into the same file.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        environment: Mapping[str, str],
        *,
        app: str = "app",
        arguments: Sequence[str] = (),
        through: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.folder = folder
        self.environment = dict(environment)
        self.app = app
        self.arguments = list(arguments)
        self.through = list(through)
        self.host = self.environment.get("HOMUNCULUS_WEB_BIND", "127.0.0.1")
        self.port = int(self.environment.get("HOMUNCULUS_WEB_PORT", "6066"))
        self.log_path = folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.expected = False
        """Whether it must be running: it was started, and the test has neither ended it nor waited for its end. After
        a SIGSTOP too it may end, when it finds its partitions taken."""

    def start(self) -> Self:
        """Starts the process and returns at once. Raises AssertionError while the former one lives."""
        assert self.process is None or self.exit_code is not None, f"{self.name} is running"
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("HOMUNCULUS_", "FAUST_", "KAFKA_", "WEB_"))
        }
        environment = inherited | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"} | self.environment
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.through, sys.executable, "-m", "faust", "-A", self.app, "worker", *self.arguments],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.expected = True
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was never started"
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs (or before its first start); -9 after a SIGKILL."""
        return None if self.process is None else self.process.poll()

    @property
    def running(self) -> bool:
        return self.process is not None and self.exit_code is None

    @property
    def url(self) -> str:
        """Where the test asks it."""
        host = {"0.0.0.0": "127.0.0.1", "::1": "[::1]"}.get(self.host, self.host)
        return f"http://{host}:{self.port}"

    def get(self, path: str, *, token: str | None = None, within_s: float = 5.0) -> Answer:
        """The answer of GET path; status 0 when the worker doesn't listen or doesn't answer within within_s."""
        request = urllib.request.Request(f"{self.url}{path}")
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=within_s) as response:
                return Answer(
                    response.status, response.read().decode(), staleness_ms=response.headers["X-Staleness-Ms"]
                )
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read().decode(), error.headers["Retry-After"])
        except OSError as error:
            return Answer(0, str(error))

    def ready(self) -> bool:
        """Whether it takes traffic: its partitions are open and a model is live."""
        return self.get("/health/ready").status == 200

    def awake(self) -> bool:
        """Whether it has ended, or answers again: a zombie's two ways out of its grave."""
        return self.exit_code is not None or self.get("/health/live").status == 200

    def wait_ready(self, within_s: float = 40.0) -> Self:
        until(self.ready, within_s, what=f"{self.name} is ready", alive=[self])
        return self

    def wait_log(self, text: str, within_s: float = 30.0) -> Self:
        """Returns when the text is in the log of any start so far."""
        until(lambda: text in self.log(None), within_s, what=f"{text!r} in the log of {self.name}", alive=[self])
        return self

    def kill(self) -> None:
        """SIGKILL: no last word."""
        self._signal(signal.SIGKILL)
        self.wait(10.0)

    def terminate(self, within_s: float = 20.0) -> int:
        """SIGTERM, as a supervisor stops it; returns the exit code, which is 0 after a clean end."""
        self._signal(signal.SIGTERM)
        return self.wait(within_s)

    def pause(self) -> None:
        """SIGSTOP: it looks dead to the group, and doesn't know."""
        self._signal(signal.SIGSTOP)
        self.expected = False

    def resume(self) -> None:
        """SIGCONT: the zombie goes on where it stopped."""
        self._signal(signal.SIGCONT)

    def wait(self, within_s: float) -> int:
        """The exit code, once it has ended. Raises NotInTimeError while it still runs after within_s."""
        assert self.process is not None, f"{self.name} was never started"
        self.expected = False
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise NotInTimeError(f"{self.name} has not ended within {within_s:g} s\n{tails([self])}") from None

    def close(self) -> None:
        """Ends it whatever its state: for the end of a test."""
        if self.running:
            self._signal(signal.SIGKILL)
            self.wait(10.0)

    def log(self, lines: int | None = 40) -> str:
        """The last lines of its log; None for all of it."""
        if not self.log_path.exists():
            return "(no log)"
        text = self.log_path.read_text(errors="replace")
        return text if lines is None else "\n".join(text.splitlines()[-lines:])

    def _signal(self, number: signal.Signals) -> None:
        assert self.running, f"{self.name} can't take {number.name}, exit code {self.exit_code}\n{tails([self])}"
        os.kill(self.pid, number)


def until(
    condition: Callable[[], Any], within_s: float, *, what: str | None = None, alive: Iterable[Worker] = ()
) -> None:
    """Returns as soon as the condition holds.

    Raises NotInTimeError after within_s seconds, or at once when a worker of `alive` is not running; both carry the
    ends of the workers' logs, since they say why.
    """
    workers = list(alive)
    named = what or condition.__qualname__
    deadline = time.monotonic() + within_s
    while not condition():
        dead = [worker for worker in workers if worker.exit_code is not None]
        if dead:
            gone = ", ".join(f"{worker.name} exited with {worker.exit_code}" for worker in dead)
            raise NotInTimeError(f"{gone} before this: {named}\n{tails(workers)}")
        if time.monotonic() > deadline:
            raise NotInTimeError(f"not within {within_s:g} s: {named}\n{tails(workers)}")
        time.sleep(0.02)


def tails(workers: Iterable[Worker], lines: int = 40) -> str:
    """The ends of the workers' logs, as a failure shows them."""
    return "\n".join(f"--- {worker.name}, exit code {worker.exit_code} ---\n{worker.log(lines)}" for worker in workers)


def free_port(count: int = 1) -> int:
    """The first of `count` adjacent ports on loopback that nobody listens on."""
    for _ in PORTS:
        first = PORTS[next(_turn) * 2 % (len(PORTS) - count)]
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise AssertionError(f"no {count} adjacent ports are free in {PORTS.start}-{PORTS.stop - 1}")


def has_ipv6() -> bool:
    """Whether this machine has the loopback address ::1."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def answers(port: int) -> bool:
    """Whether somebody listens on that port of loopback."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
