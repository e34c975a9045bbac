"""Who may ask for what: bearer tokens wherever others could reach us, and on loopback no page of another site."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from aiohttp import web
from pydantic import SecretStr

from core.errors import SettingsError
from core.settings import Settings
from web.errors import ForbiddenError, UnauthorizedError
from web.page import PATHS

OPEN: Final = frozenset({"/health/live", "/health/ready"}) | PATHS
"""Open to everybody: what supervisors ask, and the files of the page, which asks its reader for the token. They tell no
key and no value."""
READING: Final = frozenset({"GET", "HEAD"})


@lru_cache(100)  # each request without a token names a host
def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address, or a host name that means it."""
    if address.lower().rstrip(".") == "localhost":
        return True
    try:
        return ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


def is_everything(address: str) -> bool:
    """Whether an address means every one that the machine has."""
    return address.strip("[]") in {"", "0.0.0.0", "::"}


def closed(settings: Settings) -> bool:
    """Whether a token is asked for."""
    return any(map(_bytes, (settings.web_token, settings.web_read_token)))


class Access:
    """The rules for one server, whose sockets are bound to these addresses."""

    def __init__(self, settings: Settings, bound: list[str]) -> None:
        """Raises SettingsError for an address that others reach while there is no token."""
        self._all = _bytes(settings.web_token)
        self._read = _bytes(settings.web_read_token)
        beyond = [address for address in bound if not is_loopback(address)]
        if beyond and self._all is None:
            raise SettingsError(
                f"the web views would listen on {', '.join(beyond)} without a token: set HOMUNCULUS_WEB_TOKEN, or bind "
                "to 127.0.0.1"
            )
        self.closed = closed(settings)
        """Whether a token is asked for."""

    def check(self, request: web.BaseRequest) -> None:
        """Raises UnauthorizedError or ForbiddenError, which say what to send."""
        if request.rel_url.raw_path in OPEN:  # as it came: /health%2Flive may be somebody's page
            return
        may_all = self.check_reading(request.host, request.headers)
        if request.method in READING:
            return
        if not may_all:
            raise ForbiddenError("this token may only read; writing needs the worker's HOMUNCULUS_WEB_TOKEN")
        origin = request.headers.get("Origin")
        if not self.closed and origin is not None and origin != f"{request.scheme}://{request.host}":
            raise ForbiddenError("pages of other sites may not write here")

    def check_reading(self, host: str, headers: Mapping[str, str]) -> bool:
        """As check(), for what only reads. Returns whether the token, where one is asked for, allows writing too."""
        if not self.closed:
            _check_host(host)
            return True
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        given = token.strip().encode("utf-8", "surrogateescape")
        # Both are always compared, so that the time tells nothing.
        may_all = _same(given, self._all)
        may_read = _same(given, self._read)
        if scheme.lower() != "bearer" or not (may_all or may_read):
            raise UnauthorizedError(
                "send the header `Authorization: Bearer TOKEN` with the worker's HOMUNCULUS_WEB_TOKEN"
            )
        return may_all


def _check_host(host: str) -> None:
    """Without a token the network is the lock: a page in this machine's browser must not turn the key."""
    if not is_loopback(host.rpartition(":")[0] if _has_port(host) else host):
        raise ForbiddenError("without a token this worker answers to loopback names only: use http://127.0.0.1")


def _has_port(host: str) -> bool:
    return host.rpartition(":")[2].isdigit() and not host.endswith("]")


def _bytes(token: SecretStr | None) -> bytes | None:
    return (token.get_secret_value().encode() or None) if token else None


def _same(given: bytes, token: bytes | None) -> bool:
    return hmac.compare_digest(given, token if token is not None else b"\0") and token is not None
