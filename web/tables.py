"""Tables for people and dashboards: one value by its key, from whichever worker holds it, or a page of this one's."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from datetime import timedelta
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from aiohttp import web

from engine.app import App
from engine.table import RESERVED, Shard, Table
from web import answers
from web.errors import MalformedError, NotOpenError, UnknownError, UnreachableError
from web.owners import STALENESS, Owners

PAGE: Final = 100
MOST: Final = 1000
"""Values in one answer."""


class Tables:
    """Reads what is finished: an answer may be ahead of the commit by its interval, never half an event."""

    def __init__(self, app: App, owners: Owners) -> None:
        self._app = app
        self._owners = owners

    def routes(self) -> list[web.RouteDef]:
        """GET /tables, /tables/{table}, /tables/{table}/{key}."""
        return [
            web.get("/tables", self.listed),
            web.get("/tables/{table}", self.page),
            web.get("/tables/{table}/{key}", self.value),
        ]

    async def listed(self, request: web.Request) -> web.Response:
        """Every table, and the partitions that this worker has of it; copies with the seconds that they are behind."""
        engine = self._app.engine
        opened = sorted(n for n, task in engine.tasks.items() if task.open)
        opening = {str(n): task.reason for n, task in sorted(engine.tasks.items()) if not task.open}
        tables = [
            {
                "name": name,
                "help": _first_line(table),
                "retention_s": _seconds(table.retention),
            }
            for name, table in sorted(engine.tables.items())
        ]
        copies = {str(n): age and round(age, 1) for n, age in engine.standbys.staleness().items()}
        count = self._app.settings.partitions
        partitions = {"count": count, "open": opened, "opening": opening, "copies": copies}
        return answers.json({"worker": engine.name, "partitions": partitions, "tables": tables})

    async def value(self, request: web.Request) -> web.Response:
        """The value of one key; the key is percent-encoded, / as %2F. ?stale_ok=1: from a copy (HOMUNCULUS_STANDBYS)
        while the owner can't answer."""
        table = self._table(request)
        raw_key = unquote_to_bytes(request.rel_url.raw_path.split("/", 3)[3])
        key = _encoded(table, raw_key)
        partition = self._owners.partition(key)
        stale_ok = _stale_ok(request)
        try:
            shard = self._owners.here(table.name, partition)
            if shard is not None:
                return _described(table, shard, key, partition)
            answer = await self._owners.forward(request, partition)
        except (NotOpenError, UnreachableError):
            if stale_ok and (copied := await self._copied(request, table, key, partition)) is not None:
                return copied
            raise
        if answer.status == 503 and stale_ok:
            return await self._copied(request, table, key, partition) or answer
        return answer

    async def _copied(
        self, request: web.Request, table: Table[Any, Any], key: bytes, partition: int
    ) -> web.Response | None:
        """What a copy says, here or on another worker; None where there is none."""
        copy = self._app.engine.standbys.copies.get(partition)
        if copy is None or copy.store is None or (age_s := copy.age_s) is None:
            return await self._owners.copy(request, partition)
        response = _described(table, table.copied(copy.store), key, partition)
        response.headers[STALENESS] = str(round(1e3 * age_s))
        return response

    async def page(self, request: web.Request) -> web.Response:
        """This worker's part, in key order: ?prefix= &limit= (100, at most 1,000) &after= (the key before)."""
        table = self._table(request)
        prefix, after, limit = request.query.get("prefix", ""), request.query.get("after"), _limit(request)
        start = prefix.encode()
        if after is not None:
            start = max(start, after.encode() + b"\0")
        parts: list[list[tuple[bytes, bytes, Shard]]] = []
        for task in list(self._app.engine.tasks.values()):
            if task.open:
                shard = task.shard(table.name)
                parts.append([(key, raw, shard) for key, raw in shard.items(start, limit + 1)])
                await asyncio.sleep(0)  # a long page must not hold up heartbeats
        merged = heapq.merge(*parts, key=lambda item: item[0])
        ours = itertools.takewhile(lambda item: item[0].startswith(prefix.encode()), merged)
        found = list(itertools.islice(ours, limit + 1))
        items = [{"key": _shown(key), "value": table.describe(shard, raw)} for key, raw, shard in found[:limit]]
        body: dict[str, Any] = {
            "table": table.name,
            "worker": self._app.engine.name,
            "partitions": sorted(n for n, task in self._app.engine.tasks.items() if task.open),
            "items": items,
            "next": items[-1]["key"] if len(found) > limit else None,
        }
        return answers.json(body)

    def _table(self, request: web.Request) -> Table[Any, Any]:
        try:
            return self._app.engine.tables[request.match_info["table"]]
        except KeyError:
            known = ", ".join(sorted(self._app.engine.tables))
            raise UnknownError(f"there is no such table; there are {known}") from None


def _described(table: Table[Any, Any], shard: Shard, key: bytes, partition: int) -> web.Response:
    raw = shard.finished(key)
    if raw is None or key.startswith(RESERVED):
        raise UnknownError(f"table {table.name} has no value for this key (partition {partition})")
    return answers.json(table.describe(shard, raw))


def _stale_ok(request: web.Request) -> bool:
    text = request.query.get("stale_ok")
    if text not in {None, "0", "1"}:
        raise MalformedError("stale_ok must be 0 or 1")
    return text == "1"


def _encoded(table: Table[Any, Any], raw: bytes) -> bytes:
    """The stored form of a key as it stands in a URL. Raises MalformedError where the table's keys are text."""
    try:
        return table.encode_key(raw.decode())
    except UnicodeDecodeError:
        raise MalformedError("the key must be percent-encoded UTF-8") from None


def _limit(request: web.Request) -> int:
    text = request.query.get("limit", str(PAGE))
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MOST and len(text) < 10):
        raise MalformedError(f"limit must be a number from 1 to {MOST}")
    return int(text)


def _first_line(table: Table[Any, Any]) -> str:
    return (type(table).__doc__ or "").strip().partition("\n")[0]


def _seconds(retention: timedelta | None) -> float | None:
    return None if retention is None else retention.total_seconds()


def _shown(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")
