"""GET /: the live page. Its files hold no data, so they are open to all: the page itself asks for the token."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from functools import cache
from importlib import resources
from typing import Final

from aiohttp import web

from web.answers import Static
from web.operations import Operation, operation

KINDS: Final = {
    "index.html": "text/html",
    "page.css": "text/css",
    "icon.svg": "image/svg+xml",
    "chart.js": "text/javascript",
    "charts.js": "text/javascript",
    "dom.js": "text/javascript",
    "drift.js": "text/javascript",
    "format.js": "text/javascript",
    "lookup.js": "text/javascript",
    "main.js": "text/javascript",
    "panels.js": "text/javascript",
    "series.js": "text/javascript",
    "stream.js": "text/javascript",
    "token.js": "text/javascript",
}
"""File -> its content type. A file that isn't here isn't served."""
FIRST: Final = "index.html"
PATHS: Final = frozenset({"/", *(f"/page/{name}" for name in KINDS if name != FIRST)})
LIBRARY: Final = ("chartkick", "django/static/chartkick/Chart.bundle.js")
"""Chart.js, as the package chartkick carries it."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""Nothing from elsewhere, and no script or style that stands in the page itself: what a record holds can't run."""


class _File:
    """One file, as it is sent."""

    def __init__(self, name: str) -> None:
        package, path = LIBRARY if name == "chart.js" else (__package__, f"page/{name}")
        self.kind = KINDS[name]
        self.body = resources.files(package).joinpath(path).read_bytes()
        self.packed = gzip.compress(self.body, mtime=0)
        self.tag = f'"{hashlib.sha256(self.body).hexdigest()[:16]}"'
        self.headers = {"Content-Security-Policy": POLICY} if name == FIRST else {"Cache-Control": "no-cache"}


_file = cache(_File)


class Page:
    """The page and its files."""

    def routes(self) -> list[web.RouteDef]:
        """GET /, /page/{file}."""
        return [web.get("/", self.first), *(web.get(path, self.file) for path in sorted(PATHS - {"/"}))]

    @operation(Operation(gives=str, media="text/html", also={304: None}))
    async def first(self, request: web.Request) -> web.Response:
        """The live page."""
        return await self._answer(request, FIRST)

    async def file(self, request: web.Request) -> web.Response:
        """One of the files that it consists of."""
        return await self._answer(request, request.path.rpartition("/")[2])

    async def _answer(self, request: web.Request, name: str) -> web.Response:
        file = await asyncio.to_thread(_file, name)  # the first time it is read, and packed for 40 ms
        headers = file.headers | {"ETag": file.tag, "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match") == file.tag:
            return Static(headers, status=304)
        body = file.body
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            body = file.packed
            headers["Content-Encoding"] = "gzip"
        return Static(headers, body=body, content_type=file.kind, charset="utf-8")
