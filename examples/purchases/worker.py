"""The demo's worker: `faust -A app worker` in a process of its own, which ends when the demo does, however it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import aiohttp

from core.errors import HomunculusError

ROOT: Final = Path(__file__).parents[2]
HOST: Final = "127.0.0.1"
POLL_S: Final = 0.05
ANSWER_S: Final = 5.0
STOP_S: Final = 20.0
"""Seconds that a worker has to commit and to leave the group, after which it is killed."""

GUARD: Final = """
exec 3<&0
"$@" </dev/null 3<&- &
worker=$!
(read -r _ <&3; kill -TERM "$worker") >/dev/null 2>&1 &
guard=$!
exec 3<&-
wait "$worker"
status=$?
kill "$guard" 2>/dev/null
exit "$status"
"""
"""Runs its arguments, and stops them as a supervisor does when its standard input ends: when we close it, or die."""


class WorkerError(HomunculusError):
    """The worker ended, or didn't do in time what it had to. Carries the end of its log."""


class Worker:
    """One worker; `async with` starts it and stops it. Its folder holds its data and its log.

    settings are those of HOMUNCULUS_*, in lower case. The variables and the .env of whoever runs the demo don't reach
    it, so that the demo is the same everywhere.
    """

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        self.port = int(str(settings["web_port"]))
        self.log = folder / "worker.log"
        self._folder = folder
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("HOMUNCULUS_")}
        self._environment |= {f"HOMUNCULUS_{name.upper()}": str(value) for name, value in settings.items()}
        self._environment |= {"PYTHONPATH": str(ROOT)}
        self._process: Process | None = None
        self._web: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        command = [sys.executable, "-m", "faust", "-A", "app", "worker"]
        with self.log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", GUARD, "worker", *command),
                stdin=PIPE,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=self._environment,
                start_new_session=True,  # ^C is the demo's to answer
            )
        self._web = aiohttp.ClientSession(self.url, timeout=aiohttp.ClientTimeout(total=ANSWER_S))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Of its web views."""
        return f"http://{HOST}:{self.port}"

    async def get(self, path: str) -> tuple[int, Any]:
        """Status and decoded body of GET path; status 0 while nobody answers."""
        assert self._web is not None, "the worker is not started"
        try:
            async with self._web.get(path) as response:
                return response.status, await response.json()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return 0, {"error": str(error)}

    async def row(self, table: str, key: str) -> dict[str, Any]:
        """A table's value. Raises WorkerError where there is none."""
        status, body = await self.get(f"/tables/{table}/{quote(key, safe='')}")
        if status != 200 or not isinstance(body, dict):
            raise self.error(f"GET /tables/{table}/{key} answered {status}: {body}")
        return body

    async def opened(self, partitions: int, within_s: float) -> None:
        """Waits until it has opened all its partitions. Raises WorkerError."""

        async def all_open() -> bool:
            status, body = await self.get("/tables")
            return status == 200 and len(body["partitions"]["open"]) == partitions

        await self._until(all_open, within_s, "open its partitions")

    async def ready(self, within_s: float) -> None:
        """Waits until it answers events: a model is live, too. Raises WorkerError."""

        async def is_ready() -> bool:
            return (await self.get("/health/ready"))[0] == 200

        await self._until(is_ready, within_s, "get ready")

    async def ended(self) -> None:
        """Waits as long as it runs, then raises WorkerError."""
        assert self._process is not None, "the worker is not started"
        status = await self._process.wait()
        raise self.error(f"the worker ended with status {status}")

    async def kill(self) -> None:
        """SIGKILL, as a crash is: nothing has a last word."""
        process, self._process = self._process, None
        web, self._web = self._web, None
        if web is not None:
            await web.close()
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def stop(self) -> int | None:
        """Ends it: its exit status, -9 when it had to be killed, None when it wasn't running. May be called again."""
        process, self._process = self._process, None
        web, self._web = self._web, None
        if web is not None:
            await web.close()
        if process is None:
            return None
        assert process.stdin is not None  # asked for with PIPE
        process.stdin.close()
        try:
            return await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            return -signal.SIGKILL
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()

    def error(self, what: str) -> WorkerError:
        """What went wrong, with what the worker said last."""
        return WorkerError(f"{what}; the end of its log:\n{self.last_words()}")

    def last_words(self, lines: int = 25) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    async def _until(self, condition: Callable[[], Awaitable[bool]], within_s: float, what: str) -> None:
        assert self._process is not None, "the worker is not started"
        deadline = time.monotonic() + within_s
        while not await condition():
            if self._process.returncode is not None:
                raise self.error(f"the worker ended with status {self._process.returncode} before it could {what}")
            if time.monotonic() > deadline:
                _, reasons = await self.get("/health/ready")
                raise self.error(f"the worker did not {what} within {within_s:g} s, it says {reasons}")
            await asyncio.sleep(POLL_S)


def free_port(first: int) -> int:
    """The port, or else the next one on loopback that nobody holds at the moment."""
    for port in range(first, 65_536):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise WorkerError(f"no port from {first} on is free")
