"""The short way to a value that is here: a task, a timeout and a writer cost several times what the value does."""

from __future__ import annotations

import re
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
LINE: Final = re.compile(rb"GET /tables/([\w.~%-]+)/([\w.~%-]+) HTTP/1\.1")
"""What a request begins with that needn't be parsed again."""
LONGEST: Final = 2 << 10
"""Bytes of such a request."""
MOST: Final = 100
"""Sets of headers that are remembered."""


class Shortcut:
    """Answers a GET of one value while its request is being read. All else goes the long way (web/server.py), and so
    does what has to be refused: there is one place that says why."""

    def __init__(self, access: Access, lookup: Lookup) -> None:
        self._access = access
        self._lookup = lookup
        self._heads: set[bytes] = set()
        """Headers, as they were sent, of requests that were answered here."""

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

    def remember(self, data: bytes) -> None:
        """A request, all of it and nothing else, that answer() answered: clients send the same headers each time, and
        what they allow doesn't change."""
        line, _, head = data.partition(b"\r\n")
        if head in self._heads or len(data) > LONGEST or b"if-none-match" in head.lower() or not LINE.fullmatch(line):
            return
        if len(self._heads) >= MOST:
            self._heads.clear()
        self._heads.add(head)

    def again(self, data: bytes) -> bytes | None:
        """As answer(), of a request that differs in its key alone from one that is remembered."""
        line, _, head = data.partition(b"\r\n")
        if head not in self._heads or len(data) > LONGEST or (asked := LINE.fullmatch(line)) is None:
            return None
        try:
            value = self._lookup.at_once(asked[1].decode(), asked[2].decode())
        except Exception:
            return None
        return None if value is None else _answer(value, None)


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
