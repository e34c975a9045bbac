"""The embedded broker: there when asked for, shared on one machine, gone with its worker however that ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from core.errors import SettingsError
from engine import embedded as subject
from engine.embedded import HOST, Answer, EmbeddedBroker, answer_at, find_binary
from tests.kafka import free_port

ROOT = Path(__file__).resolve().parents[2]

WORKER = """
import asyncio, sys
from engine.embedded import EmbeddedBroker

async def work():
    broker = EmbeddedBroker(int(sys.argv[1]))
    await broker.start()
    print("up", flush=True)
    await asyncio.Event().wait()

asyncio.run(work())
"""


@pytest.fixture
async def broker() -> AsyncIterator[EmbeddedBroker]:
    broker = EmbeddedBroker(free_port())
    yield broker
    await broker.stop()


async def becomes(condition: Callable[[], Awaitable[bool]], within_s: float = 10.0) -> bool:
    """Whether the condition comes true in time."""
    try:
        async with asyncio.timeout(within_s):
            while not await condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        return False
    return True


async def test_it_answers_as_soon_as_start_returns_and_no_longer_once_stop_does(broker: EmbeddedBroker) -> None:
    await broker.start()
    assert await answer_at(HOST, broker.port) is Answer.BROKER
    await broker.stop()
    assert await answer_at(HOST, broker.port) is Answer.NOBODY
    await broker.stop()  # again: nothing happens


async def test_it_says_loudly_that_nothing_is_durable(broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    await broker.start()
    loud = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(loud) == 1
    assert "NOTHING IS DURABLE" in loud[0]
    assert "HOMUNCULUS_BROKER=kafka://host:port" in loud[0]


async def test_a_second_worker_shares_the_first_ones_broker_and_leaves_it_alone(broker: EmbeddedBroker) -> None:
    await broker.start()
    second = EmbeddedBroker(broker.port)
    await second.start()
    assert (broker.shared, second.shared) == (False, True)
    await second.stop()
    assert await answer_at(HOST, broker.port) is Answer.BROKER


async def test_of_workers_that_start_at_once_exactly_one_brings_the_broker() -> None:
    port = free_port()
    workers = [EmbeddedBroker(port) for _ in range(4)]
    try:
        await asyncio.gather(*(worker.start() for worker in workers))
        assert [worker.shared for worker in workers].count(False) == 1
        assert await answer_at(HOST, port) is Answer.BROKER
    finally:
        for worker in workers:
            await worker.stop()


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda ending: ending.name)
async def test_a_worker_that_dies_leaves_no_broker_behind(ending: signal.Signals) -> None:
    port = free_port()
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(port)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "up\n"
        assert await answer_at(HOST, port) is Answer.BROKER
        worker.send_signal(ending)
        worker.wait(10)

        async def gone() -> bool:
            return await answer_at(HOST, port) is Answer.NOBODY and not processes_on(port)

        assert await becomes(gone), processes_on(port)
    finally:
        worker.kill()
        worker.communicate()


async def test_an_interrupt_at_the_terminal_reaches_the_worker_but_not_its_broker(broker: EmbeddedBroker) -> None:
    await broker.start()
    assert broker.process is not None
    assert os.getpgid(broker.process.pid) != os.getpgid(0)  # ^C goes to the terminal's foreground group


async def test_it_tells_when_the_broker_dies_by_itself(broker: EmbeddedBroker) -> None:
    await broker.start()
    ended = asyncio.create_task(broker.ended())
    for pid in processes_on(broker.port, named="tansu"):
        os.kill(pid, signal.SIGKILL)
    assert await asyncio.wait_for(ended, 10) == 128 + signal.SIGKILL


async def test_a_port_that_something_else_holds_is_named_with_the_way_out() -> None:
    async def http(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(http, HOST, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        broker = EmbeddedBroker(port)
        with pytest.raises(SettingsError, match=rf"{HOST}:{port}.*isn't a Kafka broker.*HOMUNCULUS_BROKER="):
            await broker.start()
        assert broker.shared  # nothing was started


async def test_a_listener_that_never_says_a_word_is_not_taken_for_a_broker() -> None:
    silent = asyncio.Event()

    async def listen(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silent.wait()
        writer.close()

    server = await asyncio.start_server(listen, HOST, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert await answer_at(HOST, port, within_s=0.1) is Answer.OTHER
        silent.set()


async def test_a_broker_that_exits_at_once_is_reported_with_its_last_words(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "tansu"
    broken.write_text("#!/bin/sh\necho no room for me\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CALF_TANSU_BIN", str(broken))
    with pytest.raises(SettingsError, match="status 3: no room for me"):
        await broker.start()


async def test_a_broker_that_never_comes_up_is_ended_and_reported(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    idle = tmp_path / "tansu"
    idle.write_text("#!/bin/sh\necho thinking\nexec cat /dev/zero >/dev/null\n")
    idle.chmod(0o755)
    monkeypatch.setenv("CALF_TANSU_BIN", str(idle))
    with pytest.raises(SettingsError, match=r"isn't up within 0\.5 s: thinking"):
        await broker.start(within_s=0.5)
    assert broker.process is None


def test_a_platform_without_a_broker_is_told_to_use_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALF_TANSU_BIN", "/nowhere/tansu")
    with pytest.raises(SettingsError, match="HOMUNCULUS_BROKER=kafka://host:port"):
        find_binary()


def test_it_listens_on_loopback_alone() -> None:
    assert subject.HOST == "127.0.0.1"


def processes_on(port: int, named: str = "") -> list[int]:
    """The processes whose command line names the port as a listener: the broker, and the shell that guards it."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue  # it ended while we looked
        if any(part.endswith(f"tcp://{HOST}:{port}".encode()) for part in command) and (
            not named or Path(command[0].decode()).name == named
        ):
            found.append(int(entry.name))
    return found
