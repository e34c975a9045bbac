"""HTTPS by certificate files: to clients, between workers, and what a wrong file says."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientError, ClientSession

from core.errors import SettingsError
from core.settings import Settings
from engine import tls
from tests.secured.certificates import KEY_PASSWORD, Certificates
from tests.unit.web.test_neighbours import assign
from tests.unit.web.test_watch import following
from tests.unit.web.worker import PARTITIONS, Start


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def secured(certificates: Certificates, *names: str) -> dict[str, Any]:
    """Settings of a worker with a certificate of these names."""
    return {"web_cert": certificates.server(*(names or ("127.0.0.1",))), "web_ca": certificates.authority}


async def test_workers_speak_https_to_clients_and_to_each_other(start: Start, certificates: Certificates) -> None:
    first = (await start(web_token="all", **secured(certificates))).own()
    second = (await start(web_token="all", **secured(certificates))).own(*range(PARTITIONS))
    assert first.url == f"https://127.0.0.1:{first.app.settings.web_port}"
    assign(first, second)
    second.put("k", "v")
    for worker in (first, second):
        assert await worker.get("/tables/notes/k", Authorization="Bearer all") == (200, "v")
        assert (await worker.get("/tables/notes/k"))[0] == 401


async def test_a_stream_comes_through_two_workers_and_ends_with_either(
    start: Start, certificates: Certificates
) -> None:
    first = (await start(**secured(certificates))).own()
    second = (await start(**secured(certificates))).own(*range(PARTITIONS))
    assign(first, second)
    async with following(first) as follower:
        await follower.message()
        second.put("k", "v")
        assert await follower.message() == {"value": "v"}
        assert second.server is not None
        await second.server.stop()
        await follower.end()


@pytest.mark.parametrize("owner", ["of another authority", "for another host"])
async def test_a_neighbour_that_can_not_prove_who_it_is_gets_no_token(
    start: Start, certificates: Certificates, tmp_path: Path, owner: str
) -> None:
    first = (await start(**secured(certificates))).own()
    theirs = Certificates(tmp_path) if owner == "of another authority" else certificates
    names = ("127.0.0.1",) if owner == "of another authority" else ("elsewhere.example",)
    second = (await start(**secured(theirs, *names))).own(*range(PARTITIONS))
    assign(first, second)
    status, body = await first.get("/tables/notes/k")
    assert status == 503
    assert "HOMUNCULUS_WEB_CA" in body["message"]


async def test_a_client_that_does_not_trust_us_or_speaks_no_tls_gets_nothing(
    start: Start, certificates: Certificates
) -> None:
    worker = await start(**secured(certificates))
    async with ClientSession() as stranger:
        for url in (worker.url, worker.url.replace("https", "http")):
            with pytest.raises(ClientError):
                await stranger.get(f"{url}/health/live")
    assert (await worker.get("/health/live"))[0] == 200


async def test_a_connection_that_never_becomes_tls_is_let_go(
    start: Start, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("web.server.HANDSHAKE_S", 0.1)
    worker = await start(**secured(certificates))
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.app.settings.web_port)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


def test_nothing_older_than_tls_1_2_is_spoken(certificates: Certificates) -> None:
    context = tls.served(Settings(**secured(certificates)))
    assert context is not None
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def contexts(settings: Settings) -> None:
    """What a worker makes of them when it starts."""
    tls.served(settings)
    tls.trusted(settings)


def bad(certificates: Certificates, tmp_path: Path, what: str) -> tuple[dict[str, Any], str]:
    """Settings with something wrong, and the variable that is to be named."""
    cert, key = certificates.client("worker")
    _, locked = certificates.client("worker", password=KEY_PASSWORD)
    _, other = certificates.client("other")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    return {
        "no such certificate": ({"web_cert": tmp_path / "none"}, "WEB_CERT"),
        "a folder": ({"web_cert": tmp_path}, "WEB_CERT"),
        "nonsense": ({"web_cert": nonsense}, "WEB_CERT"),
        "a certificate without a key": ({"web_cert": cert}, "WEB_CERT"),
        "no such key": ({"web_cert": cert, "web_key": tmp_path / "none"}, "WEB_KEY"),
        "another's key": ({"web_cert": cert, "web_key": other}, "WEB_KEY"),
        "a locked key": ({"web_cert": cert, "web_key": locked}, "WEB_KEY"),
        "a key alone": ({"web_key": key}, "WEB_KEY"),
        "no such authority": ({"web_ca": tmp_path / "none"}, "WEB_CA"),
        "an authority of nonsense": ({"web_ca": nonsense}, "WEB_CA"),
    }[what]


@pytest.mark.parametrize(
    "what",
    [
        "no such certificate",
        "a folder",
        "nonsense",
        "a certificate without a key",
        "no such key",
        "another's key",
        "a locked key",
        "a key alone",
        "no such authority",
        "an authority of nonsense",
    ],
)
def test_a_file_that_does_not_do_is_named_with_its_variable(
    certificates: Certificates, tmp_path: Path, what: str
) -> None:
    given, variable = bad(certificates, tmp_path, what)
    with pytest.raises(SettingsError, match=f"HOMUNCULUS_{variable}") as refused:
        contexts(Settings(**given))
    assert KEY_PASSWORD not in str(refused.value)
    assert "PRIVATE" not in str(refused.value)
