"""How to reach the broker, and what it is able to do."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from aiokafka.client import AIOKafkaClient
from aiokafka.codec import has_gzip, has_lz4, has_snappy, has_zstd
from aiokafka.errors import ClusterAuthorizationFailedError, IncompatibleBrokerVersion, KafkaError, for_code
from aiokafka.protocol.transaction import InitProducerIdRequest
from faust.auth import Credentials, SASLCredentials, SSLCredentials

from core.errors import SettingsError
from core.settings import Guarantee, Settings
from engine import security
from engine.admission import admitted, unanswered

log = logging.getLogger(__name__)

_LOGIN: Final = re.compile("^(.*?//)?.*@")
PATIENCE_S: Final = 60.0
"""Seconds that a worker waits for its broker at the start."""
REQUEST_S: Final = 15.0
"""Seconds that a request may take before its connection is taken for dead; aiokafka's 40 hold up a partition as long
that opens while connections have died without a word."""


@dataclass(frozen=True, slots=True)
class Connection:
    """The broker as this worker found it."""

    settings: Settings
    bootstrap: str
    security: dict[str, Any] = field(repr=False)
    """What aiokafka's clients need beyond the address."""
    guarantee: Guarantee
    """What was asked for, or what the broker can do."""
    idempotent: bool

    @property
    def options(self) -> dict[str, Any]:
        """Address, security and patience, for any aiokafka client."""
        return {
            "bootstrap_servers": self.bootstrap,
            "request_timeout_ms": int(REQUEST_S * 1e3),
            **self.security,
        }

    @property
    def transactional(self) -> bool:
        """Whether commits are transactions."""
        return self.guarantee is Guarantee.EXACTLY_ONCE

    def end(self, asked: int, highwater: int | None) -> int:
        """Where a partition ends for us. asked: what the broker answers; highwater: what its fetches said, if any.

        Where there are transactions it is the answer alone: the high watermark counts what isn't decided yet, which
        may never be read. The embedded broker answers with the last batch's first record; its high watermark is right.
        """
        return asked if self.idempotent or not asked else max(asked, highwater or 0)

    @property
    def isolation(self) -> str:
        """How our own consumers read: what was given up counts for nothing, whatever guarantee we have ourselves."""
        return "read_committed" if self.idempotent else "read_uncommitted"


def client_options(url: str, settings: Settings | None = None) -> tuple[str, dict[str, Any]]:
    """Bootstrap servers, and aiokafka's security options, of kafka://, kafka+ssl://, kafka+sasl_ssl://, kafka+sasl_plaintext://.

    The user stands in the URL; ?sasl_mechanism=SCRAM-SHA-512&ssl_cafile=PATH&ssl_certfile=PATH&ssl_keyfile=PATH say
    the rest. settings: for the passwords that the URL doesn't have. Raises SettingsError.
    """
    kind, _, rest = url.partition("://")
    parts = urlsplit(f"//{rest}")  # without the scheme: urlsplit knows none with an underscore
    scheme, _, secured = kind.partition("+")
    if scheme != "kafka" or not parts.netloc or secured not in {"", "ssl", "sasl_ssl", "sasl_plaintext"}:
        shown = _LOGIN.sub(r"\1***@", url)
        raise SettingsError(
            f"HOMUNCULUS_BROKER is {shown!r}; use embedded, kafka://host:port,host:port, or kafka+sasl_ssl://user@host:port"
        )
    bootstrap = ",".join(host if ":" in host else f"{host}:9092" for host in parts.netloc.rpartition("@")[2].split(","))
    for host in bootstrap.split(","):
        if not host.rpartition(":")[0] or not host.rpartition(":")[2].isdecimal():
            named = "something" if "@" in parts.path + parts.query + parts.fragment else repr(host)
            raise SettingsError(
                f"HOMUNCULUS_BROKER names {named}, which is no host:port (in a password, / ? # and @ are written %2F "
                "%3F %23 %40)"
            )
    if settings is None:
        return bootstrap, security.options(secured, parts)
    return bootstrap, security.options(secured, parts, settings.broker_password, settings.broker_key_password)


def credentials(security: Mapping[str, Any]) -> Credentials | None:
    """The same security options as Faust takes them, for the producer that it has itself."""
    context = security.get("ssl_context")
    if "sasl_mechanism" not in security:
        return SSLCredentials(context) if context is not None else None
    return SASLCredentials(
        username=security["sasl_plain_username"],
        password=security["sasl_plain_password"],
        ssl_context=context,
        mechanism=security["sasl_mechanism"],
    )


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
    this installation can't do; NotAdmittedError at once when the broker doesn't let us in."""
    bootstrap, secured = client_options(url, settings)
    check_compression(settings)
    idempotent = await _gives_producer_ids(bootstrap, secured)
    guarantee = settings.guarantee
    if guarantee is Guarantee.EXACTLY_ONCE and not idempotent:
        guarantee = Guarantee.AT_LEAST_ONCE
        log.warning(
            "The broker at %s has no transactions: at_least_once from here on (a crash repeats outputs, with the "
            "same id)",
            bootstrap,
        )
    return Connection(settings, bootstrap, secured, guarantee, idempotent)


async def _gives_producer_ids(bootstrap: str, secured: dict[str, Any]) -> bool:
    """Whether the broker knows idempotent producers, and with them transactions: it is asked for an id, since the
    embedded one lists the request and fails on it."""
    deadline = time.monotonic() + PATIENCE_S
    said = False
    while True:
        client = AIOKafkaClient(bootstrap_servers=bootstrap, **secured, request_timeout_ms=5000)
        try:
            await admitted(bootstrap, secured)
            await client.bootstrap()
            node = client.get_random_node()
            if node is not None:
                if not await client.ready(node):
                    broker = client.cluster.broker_metadata(node)
                    await admitted(f"{broker.host}:{broker.port}", secured)  # it tells why, where the client doesn't
                answer = await client.send(node, InitProducerIdRequest(None, 1000))
                error = for_code(answer.error_code)
                if error is ClusterAuthorizationFailedError:
                    return True  # it has them, and doesn't give us one of this kind: rights are looked at later
                if not error.retriable or time.monotonic() > deadline:
                    return bool(answer.error_code == 0)
        except IncompatibleBrokerVersion:
            return False
        except (KafkaError, OSError, TimeoutError) as error:
            why = unanswered(error, secured)
            if time.monotonic() > deadline:
                raise SettingsError(f"no broker answers at {bootstrap} ({why}): check HOMUNCULUS_BROKER") from error
            if not said:
                log.warning("No broker answers at %s yet (%s); waiting up to %.0f s", bootstrap, why, PATIENCE_S)
                said = True
        finally:
            await client.close()
        await asyncio.sleep(0.2)
