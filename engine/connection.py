"""How to reach the broker, and what it is able to do."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import time
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from aiokafka.client import AIOKafkaClient
from aiokafka.codec import has_gzip, has_lz4, has_snappy, has_zstd
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, for_code
from aiokafka.protocol.transaction import InitProducerIdRequest
from faust.auth import Credentials, SASLCredentials, SSLCredentials

from core.errors import SettingsError
from core.settings import Guarantee, Settings

log = logging.getLogger(__name__)

_LOGIN: Final = re.compile("^(.*?//)?.*@")
PATIENCE_S: Final = 60.0
"""Seconds that a worker waits for its broker at the start."""


@dataclass(frozen=True, slots=True)
class Connection:
    """The broker as this worker found it."""

    settings: Settings
    bootstrap: str
    security: dict[str, Any]
    """What aiokafka's clients need beyond the address."""
    guarantee: Guarantee
    """What was asked for, or what the broker can do."""
    idempotent: bool

    @property
    def options(self) -> dict[str, Any]:
        """Address and security, for any aiokafka client."""
        return {"bootstrap_servers": self.bootstrap, **self.security}

    @property
    def transactional(self) -> bool:
        """Whether commits are transactions."""
        return self.guarantee is Guarantee.EXACTLY_ONCE

    def end(self, asked: int, highwater: int | None) -> int:
        """Where a partition ends for us. asked: what the broker answers; highwater: what its fetches said, if any.

        With transactions it is the answer alone: the high watermark counts what isn't decided yet, which may never
        be read. The embedded broker answers with the last batch's first record; its high watermark is right.
        """
        return asked if self.transactional or not asked else max(asked, highwater or 0)

    @property
    def isolation(self) -> str:
        """How our own consumers read."""
        return "read_committed" if self.transactional else "read_uncommitted"


def client_options(url: str) -> tuple[str, dict[str, Any]]:
    """Bootstrap servers, and aiokafka's security options, of kafka://, kafka+ssl://, kafka+sasl_ssl://, kafka+sasl_plaintext://.

    User and password stand in the URL; ?sasl_mechanism=SCRAM-SHA-512&ssl_cafile=PATH say the rest.
    Raises SettingsError.
    """
    kind, _, rest = url.partition("://")
    parts = urlsplit(f"//{rest}")  # without the scheme: urlsplit knows none with an underscore
    scheme, _, security = kind.partition("+")
    if scheme != "kafka" or not parts.netloc or security not in {"", "ssl", "sasl_ssl", "sasl_plaintext"}:
        shown = _LOGIN.sub(r"\1***@", url)
        raise SettingsError(
            f"HOMUNCULUS_BROKER is {shown!r}; use embedded, kafka://host:port,host:port, or kafka+sasl_ssl://user:password@host:port"
        )
    login, _, hosts = parts.netloc.rpartition("@")
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    bootstrap = ",".join(host if ":" in host else f"{host}:9092" for host in hosts.split(","))
    for host in bootstrap.split(","):
        if not host.rpartition(":")[0] or not host.rpartition(":")[2].isdecimal():
            raise SettingsError(f"HOMUNCULUS_BROKER names {host!r}, which is no host:port")
    options: dict[str, Any] = {}
    if security:
        options["security_protocol"] = security.upper()
    if "ssl" in security:
        options["ssl_context"] = ssl.create_default_context(cafile=query.get("ssl_cafile"))
    if "sasl" in security:
        user, _, password = login.partition(":")
        options |= {
            "sasl_mechanism": query.get("sasl_mechanism", "PLAIN"),
            "sasl_plain_username": unquote(user),
            "sasl_plain_password": unquote(password),
        }
    return bootstrap, options


def credentials(security: dict[str, Any]) -> Credentials | None:
    """The same security options as Faust takes them, for the producer that it has itself. Raises SettingsError."""
    context = security.get("ssl_context")
    if "sasl_mechanism" not in security:
        return SSLCredentials(context) if context is not None else None
    try:
        return SASLCredentials(
            username=security["sasl_plain_username"],
            password=security["sasl_plain_password"],
            ssl_context=context,
            mechanism=security["sasl_mechanism"],
        )
    except ValueError:
        raise SettingsError(f"HOMUNCULUS_BROKER: there is no sasl_mechanism {security['sasl_mechanism']!r}") from None


def check_compression(settings: Settings) -> None:
    """Raises SettingsError for a compression whose package is missing: else each partition would find out by itself."""
    there = {"gzip": has_gzip, "snappy": has_snappy, "lz4": has_lz4, "zstd": has_zstd}.get(settings.compression)
    if there is not None and not there():
        raise SettingsError(
            f"HOMUNCULUS_COMPRESSION is {settings.compression}, which needs the package cramjam: install it, or take "
            "gzip or none"
        )


async def connect(settings: Settings, url: str) -> Connection:
    """Waits for the broker and asks what it can do. Raises SettingsError when none answers in a minute, and for what
    this installation can't do."""
    bootstrap, security = client_options(url)
    check_compression(settings)
    idempotent = await _gives_producer_ids(bootstrap, security)
    guarantee = settings.guarantee
    if guarantee is Guarantee.EXACTLY_ONCE and not idempotent:
        guarantee = Guarantee.AT_LEAST_ONCE
        log.warning(
            "The broker at %s has no transactions: at_least_once from here on (a crash repeats outputs, with the "
            "same id)",
            bootstrap,
        )
    return Connection(settings, bootstrap, security, guarantee, idempotent)


async def _gives_producer_ids(bootstrap: str, security: dict[str, Any]) -> bool:
    """Whether the broker knows idempotent producers, and with them transactions: it is asked for an id, since the
    embedded one lists the request and fails on it."""
    deadline = time.monotonic() + PATIENCE_S
    said = False
    while True:
        client = AIOKafkaClient(bootstrap_servers=bootstrap, **security, request_timeout_ms=5000)
        try:
            await client.bootstrap()
            node = client.get_random_node()
            if node is not None and await client.ready(node):
                answer = await client.send(node, InitProducerIdRequest(None, 1000))
                if not for_code(answer.error_code).retriable or time.monotonic() > deadline:
                    return bool(answer.error_code == 0)
        except IncompatibleBrokerVersion:
            return False
        except (KafkaError, OSError) as error:
            if time.monotonic() > deadline:
                raise SettingsError(f"no broker answers at {bootstrap} ({error}): check HOMUNCULUS_BROKER") from error
            if not said:
                log.warning("No broker answers at %s yet; waiting up to %.0f s", bootstrap, PATIENCE_S)
                said = True
        finally:
            await client.close()
        await asyncio.sleep(0.2)
