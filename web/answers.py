"""What we say over HTTP: JSON bodies, one shape for every error, headers that keep browsers from doing more."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

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


def tagged(request: web.Request, value: Any) -> web.Response:
    """A value with an ETag: 304 and nothing else for who has it already.

    The tag is a hash of the answer's bytes. The offset of the record that the value comes from isn't kept with it, and
    the partition's would change with every other key; this one is the same on every worker, on a copy and after a
    restart, and changes exactly when a reader would see something else.
    """
    body = encode(value)
    tag = blake2b(body, digest_size=12).hexdigest()
    known = request.if_none_match if "If-None-Match" in request.headers else None
    if any(other.value in {tag, "*"} for other in known or ()):
        response = web.Response(status=304)
    else:
        response = web.Response(body=body, headers=JSON)
    response.etag = tag
    return response


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
