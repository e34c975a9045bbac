"""What we say over HTTP: JSON bodies, one shape for every error, headers that keep browsers from doing more."""

from __future__ import annotations

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

OUR_FAULT: Final = "the worker failed on this request; its log says how"

encode = msgspec.json.Encoder(order="deterministic").encode
"""As all answers are; NaN and infinities become null."""


def json(value: Any, status: int = 200) -> web.Response:
    """A value that JSON can hold."""
    return web.Response(body=encode(value), status=status, content_type="application/json", charset="utf-8")


def refusal(error: Exception, status: int) -> web.Response:
    """An error that its sender can do something about."""
    response = json({"error": type(error).__name__, "message": explain(error)}, status)
    if status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="homunculus"'
    if status == 503:
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response


def fault(status: int, message: str) -> web.Response:
    """An answer that says no more than its status does: unknown routes, methods, faults of ours."""
    return json({"error": "HTTP", "message": message}, status)


def sealed(response: web.StreamResponse) -> web.StreamResponse:
    """An answer with the headers that all have."""
    response.headers.update(SECURITY)
    return response
