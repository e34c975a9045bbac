"""A process that the demo starts and that ends when the demo does, however it ends."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from core.errors import HomunculusError

ROOT: Final = Path(__file__).parents[2]
STOP_S: Final = 20.0
"""Seconds that a process has to end by itself, after which it is killed."""

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


class ProcessError(HomunculusError):
    """A process ended, or didn't do in time what it had to. Carries the end of its log."""


class Guarded:
    """One process; `async with` starts it and stops it.

    name: for people, and of its log in the folder, where it runs; settings are those of HOMUNCULUS_*, in lower case.
    The variables and the .env of whoever runs the demo don't reach it, so that the demo is the same everywhere.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path, settings: Mapping[str, object]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = command
        self._folder = folder
        self._environment = {key: value for key, value in os.environ.items() if not key.startswith("HOMUNCULUS_")}
        self._environment |= {f"HOMUNCULUS_{key.upper()}": str(value) for key, value in settings.items()}
        self._environment |= {"PYTHONPATH": str(ROOT)}
        self._process: Process | None = None

    async def __aenter__(self) -> Self:
        with self.log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", GUARD, self.name, *self._command),
                stdin=PIPE,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=self._environment,
                start_new_session=True,  # ^C is the demo's to answer
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        assert self._process is not None, f"the {self.name} is not started"
        return self._process.returncode

    async def ended(self) -> None:
        """Waits as long as it runs, then raises ProcessError."""
        assert self._process is not None, f"the {self.name} is not started"
        status = await self._process.wait()
        raise self.error(f"the {self.name} ended with status {status}")

    async def stop(self) -> int | None:
        """Ends it: its exit status, -9 when it had to be killed, None when it wasn't running. May be called again."""
        process, self._process = self._process, None
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

    def error(self, what: str) -> ProcessError:
        """What went wrong, with what it said last."""
        return ProcessError(f"{what}; the end of its log:\n{self.last_words()}")

    def last_words(self, lines: int = 25) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
