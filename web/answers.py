"""What we say over HTTP: JSON bodies, one shape for every error, headers that keep browsers from doing more."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from web.errors import RETRY_AFTER_S, explain

SECURITY: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Server": "homunculus",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""On every answer, errors too."""

JSON: Final = {"Content-Type": "application/json; charset=utf-8"}

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})

OUR_FAULT: Final = "the worker failed on this request; its log says how"


class Refusal(msgspec.Struct):
    """What is said in the place of an answer."""

    error: str
    """Its kind."""
    message: str
    """What is wrong, and what to do about it."""


encode = msgspec.json.Encoder(order="deterministic").encode
"""As all answers are; NaN and infinities become null."""


def json(value: Any, status: int = 200) -> web.Response:
    """A value that JSON can hold."""
    return web.Response(body=encode(value), status=status, headers=JSON)


class Tagged(NamedTuple):
    """A value as JSON, with its ETag.

    The tag is a hash of the bytes. The offset of the record that the value comes from isn't kept with it, and the
    partition's would change with every other key; this one is the same on every worker, on a copy and after a restart,
    and changes exactly when a reader would see something else.
    """

    body: bytes
    tag: str
    headers: Mapping[str, str] = NO_HEADERS
    """More that its answer has."""

    def response(self, request: web.Request) -> web.Response:
        """304 and nothing else for who has it already."""
        known = request.if_none_match if "If-None-Match" in request.headers else None
        if any(other.value in {self.tag, "*"} for other in known or ()):
            response = web.Response(status=304, headers=self.headers)
        else:
            response = web.Response(body=self.body, headers={**JSON, **self.headers})
        response.etag = self.tag
        return response


def tagged(value: Any, headers: Mapping[str, str] = NO_HEADERS) -> Tagged:
    """A value that JSON can hold."""
    body = encode(value)
    return Tagged(body, blake2b(body, digest_size=12).hexdigest(), headers)


def refusal(error: Exception, status: int) -> web.Response:
    """An error that its sender can do something about."""
    response = json(Refusal(type(error).__name__, explain(error)), status)
    if status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="homunculus"'
    if status == 503:
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response


def fault(status: int, message: str) -> web.Response:
    """An answer that says no more than its status does: unknown routes, methods, faults of ours."""
    return json(Refusal("HTTP", message), status)


class Static(web.Response):
    """A file of ours; its own headers win over those that all answers have."""

    def __init__(self, own: Mapping[str, str], **options: Any) -> None:
        super().__init__(**options)
        self.own = own


def sealed(response: web.StreamResponse) -> web.StreamResponse:
    """An answer with the headers that all have."""
    response.headers.update(SECURITY)
    if isinstance(response, Static):
        response.headers.update(response.own)
    return response
