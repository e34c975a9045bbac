"""A private authority and what it signs, made anew for each run of the tests."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

KEY_PASSWORD: Final = "iron-kettle-key"


class Certificates:
    """Writes PEM files into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = trustme.CA()
        self.authority = self._file("ca.pem", self._authority.cert_pem.bytes())

    def server(self, *names: str, days: int = 30) -> Path:
        """Key and certificate of a server with these names; days may be negative: it has run out then."""
        until = datetime.now(UTC) + timedelta(days=days)
        made = self._authority.issue_cert(*names, not_before=until - timedelta(days=60), not_after=until)
        return self._file(f"server-{'-'.join(names)}-{days}.pem", _key(made) + _chain(made))

    def client(self, name: str, *, password: str | None = None) -> tuple[Path, Path]:
        """The certificate of a client with this common name, and its key."""
        made = self._authority.issue_cert(name, common_name=name)
        locked = "-locked" if password else ""
        return self._file(f"{name}{locked}.crt", _chain(made)), self._file(f"{name}{locked}.key", _key(made, password))

    def _file(self, name: str, content: bytes) -> Path:
        path = self._folder / name
        path.write_bytes(content)
        return path


def served(pem: Path) -> ssl.SSLContext:
    """What a server with that key and certificate speaks."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem)
    return context


def _key(made: trustme.LeafCert, password: str | None = None) -> bytes:
    """As PKCS #8, the only form that Kafka reads."""
    lock: KeySerializationEncryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    key = load_pem_private_key(made.private_key_pem.bytes(), None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock)


def _chain(made: trustme.LeafCert) -> bytes:
    return b"".join(part.bytes() for part in made.cert_chain_pems)
