"""HTTPS by certificate files: what a worker shows to clients, and which of its neighbours it believes."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final, NoReturn

from core.errors import SettingsError
from core.settings import Settings

_OUT_OF_TIME: Final = (9, 10)
"""OpenSSL's codes for a certificate that is not yet valid, or has expired."""


def served(settings: Settings) -> ssl.SSLContext | None:
    """What the server speaks; None without a certificate. Raises SettingsError naming the file."""
    cert, key = settings.web_cert, settings.web_key
    if cert is None:
        if key is not None:
            raise SettingsError("HOMUNCULUS_WEB_KEY needs HOMUNCULUS_WEB_CERT beside it")
        return None
    _check_readable("HOMUNCULUS_WEB_CERT", cert)
    if key is not None:
        _check_readable("HOMUNCULUS_WEB_KEY", key)
    held = f"HOMUNCULUS_WEB_KEY={key}" if key else f"HOMUNCULUS_WEB_CERT={cert}"

    def password() -> NoReturn:  # OpenSSL would ask on the terminal
        raise SettingsError(f"{held}: the key is encrypted; give the worker one that isn't, readable by it alone")

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key, password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SettingsError(f"{held}: the key isn't the one of the certificate in {cert}") from None
        files = f"HOMUNCULUS_WEB_CERT={cert}" + (f" and {held}" if key else "")
        raise SettingsError(f"{files}: no certificate with its key, in PEM form ({error.reason or 'SSL'})") from None
    return context


def trusted(settings: Settings) -> ssl.SSLContext | bool:
    """Whom it believes when it asks another worker; True: whom the machine does. Raises SettingsError."""
    ca = settings.web_ca
    if ca is None:
        return True
    _check_readable("HOMUNCULUS_WEB_CA", ca)
    try:
        return ssl.create_default_context(cafile=ca)
    except ssl.SSLError:
        raise SettingsError(f"HOMUNCULUS_WEB_CA={ca} holds no certificate in PEM form") from None


def doubt(settings: Settings) -> str | None:
    """Why a worker with the same files would not believe this one, other than its certificate's time or name; None
    where it would. Raises SettingsError."""
    shown, by = served(settings), trusted(settings)
    if shown is None or isinstance(by, bool):
        return None
    by.check_hostname = False
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = by.wrap_bio(back, there), shown.wrap_bio(there, back, server_side=True)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return None if error.verify_code in _OUT_OF_TIME else str(error.verify_message)
    return None


def _check_readable(name: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise SettingsError(f"{name}={path} can't be read: {error.strerror}") from None
