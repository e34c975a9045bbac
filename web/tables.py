"""Tables for people and dashboards: which there are, and this worker's part of one by the page."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote_from_bytes, unquote_to_bytes

import msgspec
from aiohttp import web
from msgspec import Meta

from engine.app import App
from engine.table import Shard, Table
from web import answers
from web.errors import MalformedError
from web.operations import Operation, Parameter, operation
from web.parameters import parameters, table_of
from web.values import IN_PAGE, Look

PAGE: Final = 100
MOST: Final = 1000
"""Values in one answer."""
LARGEST: Final = 4 << 20
"""Bytes of them, as they are stored: where that is reached the page ends earlier."""

Limit = Annotated[int, Meta(ge=1, le=MOST)]


class AboutTable(msgspec.Struct):
    """One table."""

    name: str
    help: str
    key: Literal["text", "bytes"]
    """Bytes are percent-encoded wherever a key stands."""
    keys: int
    """On this worker, about: RocksDB's estimate."""
    retention_s: float | None


class Partitions(msgspec.Struct):
    """This worker's."""

    count: int
    """Of the application."""
    open: list[int]
    opening: dict[str, str]
    """Partition -> what is waited for."""
    copies: dict[str, float | None]
    """Partition of another worker -> by how many seconds our copy may be behind; null: it hasn't caught up yet."""


class TableList(msgspec.Struct):
    """GET /tables."""

    worker: str
    partitions: Partitions
    tables: list[AboutTable]


class Item(msgspec.Struct, omit_defaults=True):
    """One value of a page."""

    key: str
    value: Any
    cut: bool = False
    """Whether only its beginning is shown."""


class Page(msgspec.Struct):
    """GET /tables/{table}."""

    table: str
    worker: str
    partitions: list[int]
    """Those that the page is of."""
    items: list[Item]
    next: str | None
    """For `after`; null on the last page."""


class Tables:
    """Reads what is finished: an answer may be ahead of the commit by its interval, never half an event."""

    def __init__(self, app: App) -> None:
        self._app = app

    def routes(self) -> list[web.RouteDef]:
        """GET /tables, /tables/{table}."""
        return [web.get("/tables", self.listed), web.get("/tables/{table}", self.page)]

    @operation(Operation(gives=TableList))
    async def listed(self, request: web.Request) -> web.Response:
        """Every table, and the partitions that this worker has of it; copies with the seconds that they are behind."""
        parameters(request)
        engine = self._app.engine
        partitions = Partitions(
            self._app.settings.partitions,
            sorted(n for n, task in engine.tasks.items() if task.open),
            {str(n): task.reason for n, task in sorted(engine.tasks.items()) if not task.open},
            {str(n): age and round(age, 1) for n, age in engine.standbys.staleness().items()},
        )
        tables = [self._about(table) for _, table in sorted(engine.tables.items())]
        return answers.json(TableList(engine.name, partitions, tables))

    def _about(self, table: Table[Any, Any]) -> AboutTable:
        opened = [task for task in self._app.engine.tasks.values() if task.open]
        keys = sum(task.shard(table.name).about for task in opened)
        return AboutTable(
            table.name,
            _first_line(table),
            "bytes" if _of_bytes(table) else "text",
            keys,
            _seconds(table.retention),
        )

    @operation(
        Operation(
            gives=Page,
            parameters=(
                Parameter("prefix", str, "keys that begin so"),
                Parameter("limit", Limit, f"at most so many; {PAGE} by default"),
                Parameter("after", str, "keys behind this one: `next` of the page before"),
            ),
        )
    )
    async def page(self, request: web.Request) -> web.Response:
        """This worker's part of a table, in key order. Of big values only the beginning is shown."""
        table = table_of(self._app, request.match_info["table"])
        given = parameters(request, "prefix", "limit", "after")
        limit, prefix = _limit(given), _stored(table, given.get("prefix", ""))
        start = max(prefix, _stored(table, given["after"]) + b"\0") if "after" in given else prefix
        opened = {n: task for n, task in sorted(self._app.engine.tasks.items()) if task.open}
        parts: list[list[tuple[bytes, Shard]]] = []
        for task in opened.values():
            if task.open:
                shard = task.shard(table.name)
                parts.append([(key, shard) for key, _ in itertools.islice(shard.walk(start), limit + 1)])
                await asyncio.sleep(0)  # a long page must not hold up heartbeats
        merged = heapq.merge(*parts, key=lambda item: item[0])
        ours = itertools.takewhile(lambda item: item[0].startswith(prefix), merged)
        found = list(itertools.islice(ours, limit + 1))
        items: list[Item] = []
        left, more = LARGEST, len(found) > limit
        for key, shard in found[:limit]:
            raw = shard.finished(key)
            if raw is None:
                continue  # gone while we looked at the next partition
            left -= len(raw)
            if items and left < 0:
                more = True
                break
            items.append(_item(table, key, raw, shard))
        following = items[-1].key if more and items else None
        return answers.json(Page(table.name, self._app.engine.name, list(opened), items, following))


def _item(table: Table[Any, Any], key: bytes, raw: bytes, shard: Shard) -> Item:
    look = Look(IN_PAGE)
    value = look.at_value(table, shard, raw)
    return Item(_shown(table, key), value, look.cut)


def _limit(given: Mapping[str, str]) -> int:
    text = given.get("limit", str(PAGE))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MOST):
        raise MalformedError(f"limit must be a number from 1 to {MOST}")
    return int(text)


def _of_bytes(table: Table[Any, Any]) -> bool:
    return isinstance(table.decode_key(b""), bytes)


def _shown(table: Table[Any, Any], key: bytes) -> str:
    return quote_from_bytes(key, safe="") if _of_bytes(table) else key.decode("utf-8", "backslashreplace")


def _stored(table: Table[Any, Any], text: str) -> bytes:
    """The beginning of a key, or a whole one, as _shown() writes it."""
    return unquote_to_bytes(text) if _of_bytes(table) else text.encode()


def _first_line(table: Table[Any, Any]) -> str:
    return (type(table).__doc__ or "").strip().partition("\n")[0]


def _seconds(retention: timedelta | None) -> float | None:
    return None if retention is None else retention.total_seconds()
