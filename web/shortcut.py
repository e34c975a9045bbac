"""The short way to a value that is here: a task, a timeout and a writer cost several times what the value does."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from typing import Final

from aiohttp import HttpVersion11
from aiohttp.http_parser import RawRequestMessage

from web.access import Access
from web.answers import JSON, SECURITY, Tagged
from web.lookup import Lookup


def _head(status: str, headers: Mapping[str, str]) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *map(": ".join, headers.items()), ""]).encode()


FOUND: Final = _head("200 OK", {**JSON, **SECURITY})
KNOWN: Final = _head("304 Not Modified", SECURITY)
"""For who has it already."""


class Shortcut:
    """Answers a GET of one value while its request is being read. All else goes the long way (web/server.py), and so
    does what has to be refused: there is one place that says why."""

    def __init__(self, access: Access, lookup: Lookup) -> None:
        self._access = access
        self._lookup = lookup

    def answer(self, message: RawRequestMessage) -> bytes | None:
        """The whole answer to a request without a body, as it is sent; None: the long way."""
        path, headers = message.path, message.headers
        if message.method != "GET" or not path.startswith("/tables/") or "?" in path or "#" in path:
            return None
        if message.version != HttpVersion11 or message.should_close or message.upgrade or "Expect" in headers:
            return None
        parts = path.split("/")
        if len(parts) != 4 or not parts[3]:
            return None
        try:
            self._access.check_reading(headers["Host"], headers)
            value = self._lookup.at_once(parts[2], parts[3])
        except Exception:
            return None
        return None if value is None else _answer(value, headers.get("If-None-Match"))


def _answer(value: Tagged, known: str | None) -> bytes | None:
    tag = f'"{value.tag}"'
    if known is not None and known != tag:  # it may be a list
        return None
    head = FOUND if known is None else KNOWN
    more = "".join(f"{name}: {text}\r\n" for name, text in value.headers.items())
    lines = f"{more}ETag: {tag}\r\nDate: {_date(int(time.time()))}\r\n"
    if known is None:
        lines += f"Content-Length: {len(value.body)}\r\n"
    return b"%b%b\r\n%b" % (head, lines.encode(), b"" if known else value.body)


@lru_cache(1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)
