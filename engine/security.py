"""Who we are to the broker and whom we take for it: the security options of every client, out of the broker's URL."""

from __future__ import annotations

import difflib
import ssl
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import SplitResult, parse_qs, unquote

from pydantic import SecretStr

from core.errors import SettingsError

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_FILES: Final = ("ssl_cafile", "ssl_certfile", "ssl_keyfile")


def options(
    security: str, parts: SplitResult, password: SecretStr | None = None, key_password: SecretStr | None = None
) -> dict[str, Any]:
    """What aiokafka's clients need beyond the address.

    security: "", ssl, sasl_ssl or sasl_plaintext; password: unless the URL has one. Raises SettingsError.
    """
    query = _query(parts.query, (*_FILES, "sasl_mechanism"))
    user, _, in_url = parts.netloc.rpartition("@")[0].partition(":")
    given = unquote(in_url) or (password.get_secret_value() if password else "")
    found: dict[str, Any] = {"security_protocol": security.upper()} if security else {}
    if "ssl" in security:
        found["ssl_context"] = _context(query, key_password)
    elif stray := next((name for name in query if name in _FILES), None):
        _refuse(f"{stray} needs TLS: use kafka+ssl:// or kafka+sasl_ssl://")
    if "sasl" in security:
        mechanism = query.get("sasl_mechanism", "PLAIN")
        if mechanism not in MECHANISMS:
            _refuse(f"there is no sasl_mechanism {mechanism!r}; there are {', '.join(MECHANISMS)}")
        if not user or not given:
            _refuse(
                f"kafka+{security}:// logs in, but no {'password' if user else 'user'} is given: write the user before "
                "the host (user@host), and its password into HOMUNCULUS_BROKER_PASSWORD or the file "
                "HOMUNCULUS_BROKER_PASSWORD_FILE"
            )
        login = {"sasl_plain_username": unquote(user), "sasl_plain_password": given}
        found |= {"sasl_mechanism": mechanism, **login}
    elif user or given or "sasl_mechanism" in query:
        _refuse("a user, a password or a sasl_mechanism is given, but this URL logs nobody in: use kafka+sasl_ssl://")
    return found


def files(url: str) -> dict[str, Path]:
    """The files that a broker's URL names: ssl_cafile, ssl_certfile, ssl_keyfile."""
    query = parse_qs(url.partition("?")[2])
    return {name: Path(query[name][-1]) for name in _FILES if name in query}


def _query(text: str, names: tuple[str, ...]) -> dict[str, str]:
    query = {name: values[-1] for name, values in parse_qs(text, keep_blank_values=True).items()}
    for name, value in query.items():
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            _refuse(f"there is no {name!r}; " + (f"did you mean {close[0]}?" if close else f"use {', '.join(names)}"))
        if not value:
            _refuse(f"{name} is empty")
    return query


def _context(query: dict[str, str], key_password: SecretStr | None) -> ssl.SSLContext:
    """As Python's default checks it: the broker's certificate, and that it is of the host that we asked for."""
    cafile, certfile, keyfile = (query.get(name) for name in _FILES)
    for name in _FILES:
        if name in query:
            _check_readable(name, query[name])
    try:
        context = ssl.create_default_context(cafile=cafile)
    except ssl.SSLError:
        _refuse(f"ssl_cafile={cafile} holds no certificate in PEM form")
    if certfile is None:
        if keyfile is not None:
            _refuse("ssl_keyfile needs ssl_certfile beside it")
        return context

    def secret() -> str:
        # Without this, OpenSSL would ask on the terminal.
        if key_password is None:
            _refuse(
                f"the key in {keyfile or certfile} is encrypted: set HOMUNCULUS_BROKER_KEY_PASSWORD or "
                "HOMUNCULUS_BROKER_KEY_PASSWORD_FILE"
            )
        return key_password.get_secret_value()

    try:
        context.load_cert_chain(certfile, keyfile, secret)
    except ssl.SSLError as error:
        _refuse(f"ssl_certfile={certfile} and ssl_keyfile={keyfile or certfile}: {_unusable(error, key_password)}")
    return context


def _unusable(error: ssl.SSLError, key_password: SecretStr | None) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key isn't the certificate's"
    if key_password is not None and error.reason in ("BAD_DECRYPT", None):
        return "the key can't be decrypted: HOMUNCULUS_BROKER_KEY_PASSWORD is wrong"
    return f"no certificate with its key, in PEM form ({error.reason or 'SSL'})"


def _check_readable(name: str, path: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        _refuse(f"{name}={path} can't be read: {error.strerror}")


def _refuse(why: str) -> NoReturn:
    raise SettingsError(f"HOMUNCULUS_BROKER: {why}") from None
