"""What gRPC does otherwise than HTTP: one connection that stays, its own certificates, and calls that end with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from core.errors import QdrantError, SettingsError
from core.settings import Settings
from models.knowledge import qdrant as module
from models.knowledge.qdrant import Qdrant
from models.knowledge.query import Query
from tests.qdrant import KEY
from tests.qdrant_grpc import GrpcStandIn
from tests.secured.certificates import Certificates
from tests.unit.knowledge.shelving import EMBEDDER, vector
from tests.unit.knowledge.test_qdrant import SIZE, answers, connected

pytestmark = pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")


@pytest.fixture
def server() -> Iterator[GrpcStandIn]:
    server = GrpcStandIn()
    yield server
    server.stop()


async def ask(qdrant: Qdrant) -> None:
    await qdrant.nearest(Query(text="x"), vector("x"), EMBEDDER, 5)


async def test_a_server_that_is_not_there_is_told_in_a_line_with_the_port_that_was_asked() -> None:
    server = GrpcStandIn()
    server.stop()
    async with connected(server) as qdrant:
        with pytest.raises(QdrantError) as failed:
            await qdrant.open(SIZE)
    assert f"by gRPC at port {server.port}: UNAVAILABLE: " in str(failed.value)
    assert "refused" in str(failed.value)
    assert "debug_error_string" not in str(failed.value)


async def test_a_question_under_way_when_the_worker_stops_fails_and_nothing_is_asked_after_it(
    server: GrpcStandIn,
) -> None:
    async with connected(server) as qdrant:
        await qdrant.open(SIZE)
        server.hang()
        asked = asyncio.create_task(ask(qdrant))
        await asyncio.to_thread(server.held.wait, 5)
        await qdrant.close()
        with pytest.raises(QdrantError, match="closed meanwhile"):
            await asked
        assert not asked.cancelled()
        with pytest.raises(QdrantError):
            await qdrant.versions(0)


async def test_who_asks_and_goes_is_cancelled_and_qdrant_is_not_blamed(server: GrpcStandIn) -> None:
    async with connected(server) as qdrant:
        await qdrant.open(SIZE)
        server.hang()
        asked = asyncio.create_task(ask(qdrant))
        await asyncio.to_thread(server.held.wait, 5)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert qdrant.error is None


class Wire:
    """Between client and server. What is connected when it goes dead stays so, and nobody is told."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._dead = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def laid(self) -> AsyncIterator[int]:
        """The port at which it begins."""
        listening = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        yield listening.sockets[0].getsockname()[1]
        listening.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def die(self) -> None:
        self._dead.set()
        self._dead = asyncio.Event()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward, back = await asyncio.open_connection("127.0.0.1", self._port)
        dead = self._dead
        for source, sink in ((reader, back), (onward, writer)):
            task = asyncio.create_task(self._pass(source, sink, dead))
            self._tasks.add(task)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, dead: asyncio.Event) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                if dead.is_set():
                    await asyncio.Event().wait()
                sink.write(data)
                await sink.drain()
        sink.close()


async def test_a_connection_whose_other_end_has_vanished_is_given_up_for_a_new_one(
    server: GrpcStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.CHANNEL, "grpc.keepalive_time_ms", 200)
    monkeypatch.setitem(module.CHANNEL, "grpc.keepalive_timeout_ms", 100)
    monkeypatch.setitem(module.CHANNEL, "grpc.http2.ping_timeout_ms", 100)
    wire = Wire(server.port)
    async with wire.laid() as port:
        qdrant = Qdrant(server.url, KEY, "app", port)
        await qdrant.open(SIZE)
        wire.die()
        with pytest.raises(QdrantError):
            await ask(qdrant)
        await answers(qdrant)
        await ask(qdrant)
        await qdrant.close()


async def test_an_https_url_is_tls_by_an_authority_that_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = Certificates(tmp_path), tmp_path / "theirs"
    theirs.mkdir()
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(ours.authority))  # gRPC reads it once in a process
    trusted = GrpcStandIn(ours.server("127.0.0.1"))
    stranger = GrpcStandIn(Certificates(theirs).server("127.0.0.1"))
    try:
        async with connected(trusted) as qdrant:
            await qdrant.open(SIZE)
            await ask(qdrant)
        async with connected(stranger) as qdrant:
            with pytest.raises(QdrantError, match=r"CERTIFICATE_VERIFY_FAILED|[Hh]andshake"):
                await qdrant.open(SIZE)
        plain = Qdrant(trusted.url.replace("https", "http"), KEY, "app", trusted.port)
        with pytest.raises(QdrantError, match="UNAVAILABLE"):
            await plain.open(SIZE)
        await plain.close()
    finally:
        trusted.stop()
        stranger.stop()


async def test_grpc_is_the_default_and_a_port_of_0_means_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMUNCULUS_QDRANT_URL", "http://127.0.0.1:9")
    for port, told in ((None, "gRPC at port 6334"), ("7", "gRPC at port 7"), ("0", "http://127.0.0.1:9/: All conn")):
        if port is not None:
            monkeypatch.setenv("HOMUNCULUS_QDRANT_GRPC_PORT", port)
        qdrant = Qdrant.of(Settings.read())
        assert qdrant is not None
        with pytest.raises(QdrantError, match=told):
            await qdrant.open(SIZE)
        await qdrant.close()
    for wrong in ("-1", "65536", "grpc"):
        monkeypatch.setenv("HOMUNCULUS_QDRANT_GRPC_PORT", wrong)
        with pytest.raises(SettingsError, match="HOMUNCULUS_QDRANT_GRPC_PORT"):
            Settings.read()
