"""Whether a broker lets us in, and if not, why, in words: what waiting won't mend ends the process."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Iterator
from typing import Any, Final

from aiokafka.conn import create_conn
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.metadata import MetadataRequest

from core.errors import NotAdmittedError

ANSWER_MS: Final = 5000
REFUSED: Final = (
    TopicAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    ClusterAuthorizationFailedError,
)
"""aiokafka's errors for a right that is missing."""
_UNTRUSTED: Final = "unable to get"
"""How OpenSSL's words begin when it knows no authority that has signed."""


async def admitted(bootstrap: str, security: dict[str, Any]) -> None:
    """Returns when one of the brokers has let us in and answered.

    Raises NotAdmittedError where one refuses us, or isn't who it must be, and no other one takes us; KafkaError,
    OSError or TimeoutError where none answers, for which it pays to wait.
    """
    failures: list[BaseException] = []
    for server in bootstrap.split(","):
        host, _, port = server.rpartition(":")
        try:
            connection = await create_conn(host.strip("[]"), int(port), request_timeout_ms=ANSWER_MS, **security)
            try:
                await connection.send(MetadataRequest([]))
            finally:
                connection.close()
            return
        except (KafkaError, OSError, TimeoutError) as error:
            failures.append(error)
            if (why := _refusal(error, security)) is not None:
                failures.insert(0, NotAdmittedError(f"HOMUNCULUS_BROKER: the broker at {server} {why}"))
    raise failures[0] from None


async def shown(server: str, security: dict[str, Any]) -> bytes:
    """The certificate that the broker at host:port shows, if we believe it.

    Raises NotAdmittedError where we don't; OSError or TimeoutError where nobody answers.
    """
    host, _, port = server.rpartition(":")
    try:
        async with asyncio.timeout(ANSWER_MS / 1e3):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=security["ssl_context"])
    except ssl.SSLError as error:
        raise NotAdmittedError(f"the broker at {server} {_refusal(error, security)}") from None
    der: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return der


def unanswered(error: BaseException, security: dict[str, Any]) -> str:
    """Why a broker that can't be reached may not answer."""
    silent = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    why = str(error).removeprefix("KafkaConnectionError: ") or silent
    protocol = security.get("security_protocol", "PLAINTEXT")
    closed = isinstance(error, (ConnectionResetError, TimeoutError)) or "closed" in why
    asked = f"does it speak {protocol} there{', or ask for a certificate of ours' if 'SSL' in protocol else ''}?"
    return f"{why}: {asked}" if closed else why


def in_words(error: KafkaError) -> str:
    """What an error of REFUSED means."""
    named = ", ".join(_names(error.args))
    if isinstance(error, TopicAuthorizationFailedError):
        return f"the broker doesn't let us at topic {named or '(unnamed)'}: READ, WRITE or DESCRIBE is missing"
    if isinstance(error, GroupAuthorizationFailedError):
        return f"the broker doesn't let us into the consumer group {named or '(unnamed)'}: READ is missing"
    if isinstance(error, TransactionalIdAuthorizationFailed):
        return f"the broker doesn't let us use the transactional id {named or '(unnamed)'}: WRITE is missing"
    return "the broker refuses a request that concerns the cluster: IDEMPOTENT_WRITE or CREATE is missing"


def _names(args: Iterable[Any]) -> Iterator[str]:
    for one in args:
        if isinstance(one, str):
            yield one
        elif isinstance(one, (set, frozenset, list, tuple)):
            yield from sorted(map(str, one))


def _refusal(error: BaseException, security: dict[str, Any]) -> str | None:
    """What is wrong, if it stays wrong."""
    cause = error if isinstance(error, ssl.SSLError) else error.__cause__ or error.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"has a certificate that can't be trusted: {_distrust(cause)}"
    if isinstance(cause, ssl.SSLError):
        reason = (cause.reason or "").replace("_", " ").lower()
        if "alert" in reason:
            return (
                f"doesn't take our certificate ({reason}): give one that it trusts by ssl_certfile and ssl_keyfile in "
                "the URL's query"
            )
        return f"doesn't speak TLS as we do ({reason}): is it the port for {security['security_protocol']}?"
    if isinstance(error, SaslAuthenticationFailed):
        return (
            f"doesn't let {security['sasl_plain_username']!r} in by {security['sasl_mechanism']}: check the user, its "
            f"password and sasl_mechanism ({_said(error)})"
        )
    if isinstance(error, UnsupportedSaslMechanismError):
        return f"knows no {security['sasl_mechanism']}: choose another sasl_mechanism ({_said(error)})"
    if isinstance(error, IllegalSaslStateError):
        return "asks nobody to log in: use kafka:// or kafka+ssl:// there, or its port for SASL"
    return None


def _distrust(error: ssl.SSLCertVerificationError) -> str:
    why = error.verify_message.rstrip(".")
    if why.startswith(_UNTRUSTED) or "self-signed" in why or "self signed" in why:
        return f"{why}; name the file of the authority that has signed it by ssl_cafile in the URL's query"
    return why


def _said(error: KafkaError) -> str:
    [words] = error.args or [None]
    return f"it says: {words}" if isinstance(words, str) else type(error).__name__
