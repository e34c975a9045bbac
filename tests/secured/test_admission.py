"""A broker that isn't who it must be, or files that don't hold what they must: one sentence, at once."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from core.errors import NotAdmittedError, SettingsError
from core.settings import Settings
from engine.admission import admitted
from engine.connection import client_options
from tests.secured.certificates import KEY_PASSWORD, Certificates, served

HOST = "127.0.0.1"


@asynccontextmanager
async def server(context: ssl.SSLContext) -> AsyncIterator[int]:
    """Does the handshake and hangs up; gives its port."""

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    running = await asyncio.start_server(hang_up, HOST, 0, ssl=context)
    async with running:
        yield running.sockets[0].getsockname()[1]


async def refusal(context: ssl.SSLContext, query: str) -> str:
    async with server(context) as port:
        bootstrap, security = client_options(f"kafka+ssl://{HOST}:{port}?{query}")
        with pytest.raises(NotAdmittedError) as refused:
            await admitted(bootstrap, security)
        assert f"{HOST}:{port}" in str(refused.value)
        return str(refused.value)


@pytest.mark.parametrize(
    ("name", "days", "told"),
    [
        (HOST, -1, "certificate has expired"),
        ("elsewhere.example", 30, "certificate is not valid for '127.0.0.1'"),
    ],
)
async def test_a_certificate_that_is_old_or_of_another_host_ends_the_start(
    certificates: Certificates, name: str, days: int, told: str
) -> None:
    context = served(certificates.server(name, days=days))
    assert told in await refusal(context, f"ssl_cafile={certificates.authority}")


async def test_an_authority_that_nobody_named_ends_the_start(certificates: Certificates, tmp_path: Path) -> None:
    context = served(certificates.server(HOST))
    stranger = Certificates(tmp_path).authority
    for query in ("", f"ssl_cafile={stranger}"):
        assert "by ssl_cafile" in await refusal(context, query)


async def test_a_refusal_counts_more_than_a_broker_that_is_away(certificates: Certificates) -> None:
    async with server(served(certificates.server(HOST, days=-1))) as port:
        bootstrap, security = client_options(f"kafka+ssl://{HOST}:1,{HOST}:{port}?ssl_cafile={certificates.authority}")
        with pytest.raises(NotAdmittedError):  # the other may never come back
            await admitted(bootstrap, security)


def with_files(certificates: Certificates, **files: object) -> str:
    query = "&".join(f"ssl_{name}={path}" for name, path in files.items())
    return f"kafka+ssl://{HOST}:9?ssl_cafile={certificates.authority}&{query}"


def test_files_that_do_not_hold_what_they_must_are_named(certificates: Certificates, tmp_path: Path) -> None:
    certificate, key = certificates.client("someone")
    other, _ = certificates.client("other")
    empty, missing = tmp_path / "empty.pem", tmp_path / "missing.pem"
    empty.touch()
    for url, told in (
        (f"kafka+ssl://{HOST}:9?ssl_cafile={missing}", f"ssl_cafile={missing} can't be read: No such file"),
        (f"kafka+ssl://{HOST}:9?ssl_cafile={tmp_path}", "can't be read: Is a directory"),
        (f"kafka+ssl://{HOST}:9?ssl_cafile={empty}", "holds no certificate"),
        (with_files(certificates, certfile=missing), "No such file"),
        (with_files(certificates, keyfile=key), "needs ssl_certfile"),
        (with_files(certificates, certfile=certificate, keyfile=empty), "in PEM form"),
        (with_files(certificates, certfile=other, keyfile=key), "the key isn't the certificate's"),
    ):
        with pytest.raises(SettingsError, match=f"HOMUNCULUS_BROKER: .*{told}"):
            client_options(url)


@pytest.mark.parametrize(
    ("password", "told"),
    [(None, "set HOMUNCULUS_BROKER_KEY_PASSWORD"), ("wrong-one", "HOMUNCULUS_BROKER_KEY_PASSWORD is wrong")],
)
def test_an_encrypted_key_asks_for_its_password_once_and_not_on_the_terminal(
    certificates: Certificates, password: str | None, told: str
) -> None:
    certificate, key = certificates.client("someone", password=KEY_PASSWORD)
    url = with_files(certificates, certfile=certificate, keyfile=key)
    with pytest.raises(SettingsError, match=told) as refused:
        client_options(url, Settings(broker_key_password=SecretStr(password) if password else None))
    assert "wrong-one" not in str(refused.value)
    _, security = client_options(url, Settings(broker_key_password=SecretStr(KEY_PASSWORD)))
    assert security["security_protocol"] == "SSL"


@pytest.mark.parametrize(
    ("url", "settings", "told"),
    [
        ("kafka+sasl_ssl://one:9", {"broker_password": "hush"}, "no user is given"),
        ("kafka+sasl_ssl://ann@one:9", {}, "HOMUNCULUS_BROKER_PASSWORD_FILE"),
        ("kafka+sasl_ssl://ann@one:9?sasl_mechansim=PLAIN", {"broker_password": "hush"}, "did you mean sasl_mechanism"),
        ("kafka+sasl_ssl://ann@one:9?sasl_mechanism=", {"broker_password": "hush"}, "is empty"),
        ("kafka+sasl_ssl://ann@one:9?sasl_mechanism=MAGIC", {"broker_password": "hush"}, "SCRAM-SHA-512"),
        ("kafka://ann:hush@one:9", {}, "logs nobody in"),
        ("kafka://one:9", {"broker_password": "hush"}, "logs nobody in"),
        ("kafka://one:9?ssl_cafile=x", {}, "needs TLS"),
        ("kafka+sasl_ssl://ann:hu?sh@one:9", {}, "%2F"),
    ],
)
def test_what_can_not_be_meant_is_refused_without_its_password(url: str, settings: dict[str, Any], told: str) -> None:
    given = Settings(broker=url, **settings)
    with pytest.raises(SettingsError, match=told) as refused:
        client_options(given.broker, given)
    assert "hu" not in str(refused.value).replace("HOMUNCULUS", "")
