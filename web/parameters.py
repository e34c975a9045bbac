"""What stands in a URL: each parameter once, none that the route doesn't know, nothing that isn't UTF-8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

from aiohttp import web

from core.errors import HomunculusError
from engine.app import App
from engine.table import Table
from web.errors import MalformedError, UnknownError

MOST: Final = 20
"""Parameters of one request."""


def parameters(request: web.Request, *known: str) -> dict[str, str]:
    """Those of the query. Raises MalformedError for one that the route doesn't have: a typo must not go unnoticed."""
    try:
        pairs = parse_qsl(
            request.rel_url.raw_query_string, keep_blank_values=True, errors="strict", max_num_fields=MOST
        )
        "".join(text for _, text in pairs).encode()
    except ValueError:
        raise MalformedError(f"the query must be percent-encoded UTF-8, at most {MOST} parameters") from None
    found: dict[str, str] = {}
    for name, text in pairs:
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "it takes none"
            raise MalformedError(f"the route has no such parameter; {there}")
        if name in found:
            raise MalformedError(f"{name} is given twice")
        found[name] = text
    return found


def flag(given: Mapping[str, str], name: str) -> bool:
    """A parameter that is 1, or 0, or left out. Raises MalformedError."""
    text = given.get(name, "0")
    if text not in {"0", "1"}:
        raise MalformedError(f"{name} must be 0 or 1")
    return text == "1"


class Place(NamedTuple):
    """A key of a table, and where it lives."""

    table: Table[Any, Any]
    key: bytes
    """As it is stored."""
    session: bytes
    """The key of the records that its value is made of: it gives the partition."""


def table_of(app: App, name: str) -> Table[Any, Any]:
    """A table by its name. Raises UnknownError."""
    try:
        return app.engine.tables[name]
    except KeyError:
        raise UnknownError(f"there is no such table; there are {', '.join(sorted(app.engine.tables))}") from None


def place_of(table: Table[Any, Any], encoded: str, given: Mapping[str, str]) -> Place:
    """A key as it stands in a path: percent-encoded, / as %2F; the parameter `session` where its table can't say whose
    it is. Raises MalformedError."""
    try:
        key = table.decode_key(unquote_to_bytes(encoded))
    except UnicodeError:
        raise MalformedError("the key must be percent-encoded UTF-8") from None
    session: str | bytes | None = given.get("session")
    if session == "":
        raise MalformedError("session must not be empty")
    if session is None:
        try:
            session = table.session(key)
        except (ValueError, LookupError, HomunculusError):
            raise MalformedError(f"table {table.name} can't say whose this key is: name it with ?session=") from None
    return Place(table, table.encode_key(key), session.encode() if isinstance(session, str) else session)
