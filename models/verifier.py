"""A candidate is tried in a process of its own first: what crashes, hangs or swallows memory costs no traffic.

Both ends of the pipe are here. A request and each answer are a line of JSON; the worker takes nothing but words from a
process in which a hostile model may have run.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import resource
import signal
import sys
import warnings
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from core.errors import (
    GoldenMismatchError,
    ManifestError,
    ModelError,
    ProviderMissingError,
    TamperedError,
    UnsafeModelError,
)
from models.budget import Share
from models.device import Device
from models.folder import ModelFolder, sha256
from models.inference import InferenceThread
from models.manifest import MANIFEST, Kind, Manifest
from models.memory import available
from models.precision import FP32
from models.runtime import Runtime
from models.talking import TRIED, Talking

log = logging.getLogger(__name__)

LIMIT_S: Final = 60.0
BYTES_A_SECOND: Final = 10_000_000
"""Of a version's files: large ones get that much more time."""
LONGEST_S: Final = 600.0
IDLE_S: Final = 60.0
"""Without work the process ends, since it holds 80 MB, half of it its own."""
NICE: Final = 10
LONGEST_WORDS: Final = 2000

ROOT: Final = Path(__file__).resolve().parents[1]
PROGRAM: Final = (
    "-c",
    "import os; os.closerange(3, os.sysconf('SC_OPEN_MAX')); from models.verifier import main; main()",
)
"""uvloop leaves a child what may be inherited, whatever it is asked: it goes before anything of the child's is open."""
PR_SET_PDEATHSIG: Final = 1

ERRORS: Final = {
    error.__name__: error
    for error in (ManifestError, TamperedError, ProviderMissingError, GoldenMismatchError, UnsafeModelError)
}


class Place(NamedTuple):
    """Where a candidate is tried."""

    device: str
    """As Device.of takes it."""
    room: int | None = None
    """Bytes of the device's memory that it may take."""
    once: bool = False
    """Whether the process ends with it: one that has used an accelerator holds some of its memory until then."""


class _Request(msgspec.Struct):
    path: str
    name: str
    version: str
    sha256: str
    device: str
    memory: int | None
    """Bytes that it may take."""
    precision: str = FP32
    room: int | None = None
    """Bytes of the device's memory that it may take."""


class _Answer(msgspec.Struct):
    doing: str | None = None
    """Where it stands; None in the last answer to a request."""
    error: str | None = None
    """Name of a ModelError; None when the version has passed."""
    words: str = ""


class _EndedError(Exception):
    """The process has ended by itself; says how."""


class Verifier:
    """Tries candidates, one at a time, in a process that is there while there is something to try.

    Belongs to one event loop, of the thread that lives longest: Linux ends the process with the thread that started
    it. The process inherits neither sockets nor locks, and ends with the worker.
    """

    def __init__(
        self,
        device: str,
        limit_s: float = LIMIT_S,
        memory: int | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        """device: as Device.of takes it. limit_s: for a small version. memory: bytes that a candidate may take; by
        default half of what is left when it is tried."""
        self._device = device
        self._limit_s = limit_s
        self._memory = memory
        self._idle_s = idle_s
        self._process: Process | None = None
        self.doing = ""
        """Where the candidate stands, or the last one did."""
        self._passed: set[str] = set()
        self._turn = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return self._process.pid if self._process is not None else None

    async def check(
        self, folder: ModelFolder, *, hurry: bool = False, precision: str = FP32, place: Place | None = None
    ) -> None:
        """Returns when the version has done over there what Runtime asks of it; at once when it has before.

        hurry: nobody is being answered, so that it needn't let others pass. place: where, if not on the verifier's own
        device for as long as it likes. Raises what Runtime does, and UnsafeModelError when the process died of the
        version or had to be ended.
        """
        key = folder.key(precision)
        async with self._turn:
            if key in self._passed:
                return
            # A process that is there already may die of what it has done before: then a new one has the last word.
            for last in (True,) if self._process is None else (False, True):
                try:
                    await self._try(folder, hurry, precision, place or Place(self._device))
                    break
                except _EndedError as ended:
                    if last:
                        raise UnsafeModelError(f"{folder.identity}: {ended}") from None
                    log.warning("%s is tried once more: %s, and had tried others before", folder.identity, ended)
            self._passed.add(key)

    async def close(self) -> None:
        """Ends the process, whatever it does."""
        self._closed = True
        await self._end()

    async def _try(self, folder: ModelFolder, hurry: bool, precision: str, place: Place) -> None:
        self._refuse_when_closed(folder)
        limit_s = await asyncio.to_thread(patience, folder, self._limit_s)
        process = await self._running(folder)
        if not hurry:
            with suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
        self.doing = "before it was loaded"
        answer: _Answer | None = None
        try:
            async with asyncio.timeout(limit_s):
                answer = await self._ask(process, self._request(folder, precision, place))
        except TimeoutError:
            raise UnsafeModelError(
                f"{folder.identity}: it was given {limit_s:,.0f} s, and had to be ended {self.doing}"
            ) from None
        except _EndedError:
            self._refuse_when_closed(folder)
            raise
        except (ValueError, msgspec.DecodeError):
            raise UnsafeModelError(
                f"{folder.identity}: the process that tried it talks nonsense {self.doing}"
            ) from None
        finally:
            if answer is None or place.once:
                await self._end()
        self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._let_go)
        if answer.error is not None:
            raise ERRORS.get(answer.error, ModelError)(answer.words)

    async def _running(self, folder: ModelFolder) -> Process:
        if self._idle is not None:
            self._idle.cancel()
        if self._process is None:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, *PROGRAM, str(os.getpid()), cwd=str(ROOT), stdin=PIPE, stdout=PIPE
                )
            except OSError as error:
                raise ModelError(
                    f"{folder.identity} can't be tried, since no process can be started: {error}"
                ) from error
        return self._process

    def _request(self, folder: ModelFolder, precision: str, place: Place) -> _Request:
        memory, left = self._memory, available()
        if memory is None and left is not None:
            memory = left // 2  # the rest is for the worker, and for whoever else tries one
        path, manifest = folder.path.absolute(), folder.manifest
        return _Request(
            str(path), manifest.name, manifest.version, folder.sha256, place.device, memory, precision, place.room
        )

    async def _ask(self, process: Process, request: _Request) -> _Answer:
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(ConnectionError):  # it has ended: that is what is read, too
            process.stdin.write(msgspec.json.encode(request) + b"\n")
            await process.stdin.drain()
        while line := await process.stdout.readline():
            answer = msgspec.json.decode(line, type=_Answer)
            if answer.doing is None:
                return answer
            self.doing = answer.doing
        raise _EndedError(f"the process that tried it ended {self.doing}, {_how(await process.wait())}")

    def _refuse_when_closed(self, folder: ModelFolder) -> None:
        if self._closed:
            raise ModelError(f"{folder.identity} isn't tried any more: this worker ends")

    def _let_go(self) -> None:
        """The process ends when its standard input does."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()

    async def _end(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def patience(folder: ModelFolder, least_s: float = LIMIT_S) -> float:
    """Seconds that a version may take to be loaded and tried."""
    size = 0
    with suppress(OSError):  # one has gone: that is for whoever opens it to tell
        size = sum((folder.path / file).stat().st_size for file in folder.manifest.files)
    return min(LONGEST_S, least_s + size / BYTES_A_SECOND)


def _how(status: int) -> str:
    if status >= 0:
        return f"with status {status}"
    name = signal.Signals(-status).name
    return f"by {name}, as the system does when memory runs out" if -status == signal.SIGKILL else f"by {name}"


# -- in the process ---------------------------------------------------------------------------------------------------


def main() -> None:
    """Tries what standard input asks for, a line each, until it ends."""
    _leave_alone(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever libraries print is no answer

    def tell(answer: _Answer) -> None:
        answers.write(msgspec.json.encode(answer) + b"\n")

    thread = InferenceThread()
    for line in sys.stdin.buffer:
        tell(verdict(msgspec.json.decode(line, type=_Request), thread, tell))


def verdict(request: _Request, thread: InferenceThread, tell: Callable[[_Answer], None]) -> _Answer:
    """Does with a version what a worker does before it goes live."""
    who = f"{request.name}@{request.version}"
    try:
        _bound(request.memory)
        folder = _folder(request, who)
        tell(_Answer("while it was loaded"))
        device = Device.of(request.device, memory=request.room)
        share = device.memory.take(who, request.room) if request.room is not None else None
        _try(folder, device, thread, request, share, lambda: tell(_Answer("in its first runs")))
    except Exception as error:
        words = str(error) if isinstance(error, ModelError) else f"{who} can't be tried: {error!r}"
        words = " ".join(words.split())[:LONGEST_WORDS]
        if request.memory is None or not _wants_memory(error):
            return _Answer(error=type(error).__name__, words=words)
        words += f"; it may take {request.memory / 1e6:,.0f} MB, half of what this machine has left"
        return _Answer(error=UnsafeModelError.__name__, words=words)
    return _Answer()


def _try(
    folder: ModelFolder,
    device: Device,
    thread: InferenceThread,
    request: _Request,
    share: Share | None,
    warming: Callable[[], None],
) -> None:
    if folder.manifest.kind is Kind.DECODER:
        Talking(TRIED).load(folder, device, warming).close()
    else:
        Runtime(folder, device, thread, warming=warming, precision=request.precision, share=share).close()


def _folder(request: _Request, who: str) -> ModelFolder:
    """As the worker has opened it: the hashes of its files aren't taken twice."""
    path = Path(request.path)
    manifest = Manifest.read(path / MANIFEST, f"{who}: {MANIFEST}")
    if sha256(path / MANIFEST) != request.sha256:
        raise TamperedError(f"{who}: {MANIFEST} has changed since its files were checked")
    return ModelFolder(path, manifest, request.sha256)


def _leave_alone(worker: int) -> None:
    """Ends with the worker and not before: Ctrl-C in its terminal and a supervisor's SIGTERM are the worker's."""
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.disable()  # the worker says it all when it loads the version itself
    warnings.simplefilter("ignore")
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # elsewhere it ends with its next read
        if os.getppid() != worker:
            sys.exit()
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")  # if the machine has to end one, then this


def _bound(memory: int | None) -> None:
    """What it may take from now on. RLIMIT_DATA counts memory of its own, where RLIMIT_AS would count a GPU's
    address space and mapped files too."""
    if memory is not None and sys.platform == "linux":
        now = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = now + memory if hard == resource.RLIM_INFINITY else min(now + memory, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _wants_memory(error: BaseException) -> bool:
    return isinstance(error.__cause__ or error, MemoryError) or any(
        sign in str(error) for sign in ("bad_alloc", "Failed to allocate", "Unable to allocate")
    )
