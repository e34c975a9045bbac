"""The demo's worker: `faust -A app worker`, and what it says of itself over HTTP."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

import aiohttp

from examples.purchases.process import Guarded, ProcessError

HOST: Final = "127.0.0.1"
POLL_S: Final = 0.05
ANSWER_S: Final = 5.0


class Worker(Guarded):
    """One worker; `async with` starts it and stops it. Its folder holds its data and its log."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        super().__init__("worker", [sys.executable, "-m", "faust", "-A", "app", "worker"], folder, settings)
        self.port = int(str(settings["web_port"]))
        self._web: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._web = aiohttp.ClientSession(self.url, timeout=aiohttp.ClientTimeout(total=ANSWER_S))
        return self

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
        """A table's value. Raises ProcessError where there is none."""
        status, body = await self.get(f"/tables/{table}/{quote(key, safe='')}")
        if status != 200 or not isinstance(body, dict):
            raise self.error(f"GET /tables/{table}/{key} answered {status}: {body}")
        return body

    async def counted(self, metric: str, **labels: str) -> float:
        """A counter of /metrics; 0.0 while nobody answers, or there is none."""
        assert self._web is not None, "the worker is not started"
        try:
            async with self._web.get("/metrics") as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError):
            return 0.0
        told = ",".join(f'{name}="{value}"' for name, value in labels.items())
        found = re.search(rf"^{re.escape(f'homunculus_{metric}_total{{{told}}}')} (\S+)", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    async def opened(self, partitions: int, within_s: float) -> None:
        """Waits until it has opened all its partitions. Raises ProcessError."""

        async def all_open() -> bool:
            status, body = await self.get("/tables")
            return status == 200 and len(body["partitions"]["open"]) == partitions

        await self.until(all_open, within_s, "open its partitions")

    async def ready(self, within_s: float) -> None:
        """Waits until it answers events: a model is live, too. Raises ProcessError."""

        async def is_ready() -> bool:
            return (await self.get("/health/ready"))[0] == 200

        await self.until(is_ready, within_s, "get ready")

    async def labels_joined(self) -> int:
        """How many labels have found their answers by now."""
        return int(await self.counted("feedback", outcome="joined"))

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
        """As any process."""
        web, self._web = self._web, None
        if web is not None:
            await web.close()
        return await super().stop()

    async def until(self, condition: Callable[[], Awaitable[bool]], within_s: float, what: str) -> None:
        """Waits for it. Raises ProcessError when the worker ends before, or when that takes too long."""
        deadline = time.monotonic() + within_s
        while not await condition():
            if self.status is not None:
                raise self.error(f"the worker ended with status {self.status} before it could {what}")
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
    raise ProcessError(f"no port from {first} on is free")
