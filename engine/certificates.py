"""From when until when a certificate counts: what Python's ssl tells of others' certificates, but not of files."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

_PEM: Final = re.compile("-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----([^-]*)-----END")
_VERSION, _SHORT_TIME = 0xA0, 0x17
"""Tags of ASN.1: what begins a certificate of any version but the first, and a time whose year has two digits."""


class Certificate(NamedTuple):
    """The time in which it counts."""

    begins: datetime
    ends: datetime


def in_file(path: Path) -> list[Certificate]:
    """Those of a PEM file that OpenSSL can read, in their order."""
    text = path.read_text("ascii", errors="replace")
    return [decoded(base64.b64decode(one)) for one in _PEM.findall(text)]


def decoded(der: bytes) -> Certificate:
    """Of one in the form in which it is shown to others. Source: RFC 5280, section 4.1."""
    _, at, _ = _element(der, 0)
    _, at, _ = _element(der, at)
    tag, _, end = _element(der, at)
    if tag == _VERSION:
        at = end
    for _ in ("serial number", "algorithm", "issuer"):
        _, _, at = _element(der, at)
    _, at, _ = _element(der, at)
    tag, at, end = _element(der, at)
    begins = _time(tag, der[at:end])
    tag, at, end = _element(der, end)
    return Certificate(begins, _time(tag, der[at:end]))


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Tag, and where its content begins and ends."""
    size, begin = der[at + 1], at + 2
    if size & 0x80:
        digits = size & 0x7F
        size, begin = int.from_bytes(der[begin : begin + digits], "big"), begin + digits
    return der[at], begin, begin + size


def _time(tag: int, content: bytes) -> datetime:
    form = "%y%m%d%H%M%SZ" if tag == _SHORT_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(content.decode("ascii"), form).replace(tzinfo=UTC)
