"""How a value looks to people: times in ISO beside ms, and of what is big the beginning, with a note."""

from __future__ import annotations

import math
from typing import Any, Final

from engine.late import iso
from engine.table import Shard, Table

ALONE: Final = 64 << 10
"""Characters of a value that is asked for alone, about; ?whole=1 has all of it."""
FOLLOWED: Final = 16 << 10
"""Of one that is followed: as JSON it has at most six times as many bytes, which a worker passes on as one line."""
IN_PAGE: Final = 2 << 10
"""Of one among others."""
EACH: Final = 8
"""What everything counts for, be it empty."""
TIMES: Final = ("ts", "since")
TIME_ENDS: Final = ("_ts", "_at")
"""Fields that hold ms since epoch, by name."""
EARLIEST_MS: Final = 100_000_000_000
"""1973. A smaller number isn't ms, whatever its name."""
LATEST_MS: Final = 253_402_300_799_999


class Look:
    """One look at a value that JSON can hold, with room for so many characters."""

    def __init__(self, room: float = math.inf) -> None:
        self._left = room
        self.cut = False
        """Whether something was left out."""

    def at_value(self, table: Table[Any, Any], shard: Shard, raw: bytes) -> Any:
        """What is shown of a stored value."""
        value = table.describe(shard, raw)
        return value if table.short else self.at(value)

    def at(self, value: Any) -> Any:
        """What is shown of it. Notes on what was left out begin with `…`."""
        self._left -= EACH
        match value:
            case str():
                return self._text(value)
            case dict():
                return self._fields(value)
            case list() | tuple():
                return self._items(value)
        return value

    def _text(self, text: str) -> str:
        kept = int(min(len(text), max(self._left, 0)))
        self._left -= kept
        if kept == len(text):
            return text
        self.cut = True
        return f"{text[:kept]}… ({len(text):,} characters)"

    def _fields(self, fields: dict[Any, Any]) -> dict[Any, Any]:
        shown: dict[Any, Any] = {}
        for name, value in fields.items():
            self._left -= len(name) if type(name) is str else EACH
            if self._left <= 0:
                self.cut = True
                shown["…"] = f"… ({len(fields):,} fields)"
                break
            if type(value) is float:  # most of what is shown
                self._left -= EACH
                shown[name] = value
                continue
            shown[name] = self.at(value)
            if type(value) is int and is_time(name, value):
                shown.setdefault(f"{name}_iso", iso(value))
        return shown

    def _items(self, items: list[Any] | tuple[Any, ...]) -> list[Any]:
        shown: list[Any] = []
        for item in items:
            if self._left <= 0:
                self.cut = True
                shown.append(f"… ({len(items):,} items)")
                break
            shown.append(self.at(item))
        return shown


def is_time(name: object, value: int) -> bool:
    """Whether a field holds ms since epoch: its value may be, and its name says so."""
    if not (EARLIEST_MS <= value <= LATEST_MS and isinstance(name, str)):
        return False
    return name in TIMES or name.endswith(TIME_ENDS)
