"""What a command has to say, once for people and once for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Report:
    """document: what --json prints; lines: what people read; ok: whether the exit status is 0."""

    document: Any
    lines: list[str] = field(default_factory=list)
    ok: bool = True


def columns(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Rows under their heads, aligned; the last column takes what room it needs."""
    cells = [list(heads), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def moment(ms: int) -> str:
    """ms since epoch, in UTC."""
    return datetime.fromtimestamp(ms / 1e3, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
