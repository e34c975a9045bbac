"""The rights that docs/security.md lists, for one application."""

from __future__ import annotations

from collections.abc import Iterator

from tests.secured.kafka import Right
from tests.worker import ROOT


def least(prefix: str, app_id: str) -> list[Right]:
    """What the docs say that a worker needs: the first table under Rights."""
    return list(_table((ROOT / "docs" / "security.md").read_text("utf-8"), prefix, app_id))


def _table(text: str, prefix: str, app_id: str) -> Iterator[Right]:
    lines = iter(text.partition("## Rights")[2].splitlines())
    for row in list(_first_table(lines))[2:]:
        operation, on, names = (cell.strip() for cell in row.strip("|").split("|"))
        prefixed, _, kind = on.rpartition(" ")
        for name in names.replace("PREFIX", prefix).replace("APP_ID", app_id).split():
            yield Right(operation, kind, name.strip("`"), bool(prefixed))


def _first_table(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if line.startswith("|"):
            yield line
            break
    for line in lines:
        if not line.startswith("|"):
            return
        yield line
