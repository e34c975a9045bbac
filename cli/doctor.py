"""`faust -A app doctor`: everything that a worker needs, looked at before it starts."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from aiokafka.errors import KafkaError

from cli import checks
from cli.command import OperatorCommand
from cli.report import Report
from engine.app import App
from engine.connection import Connection

FAULTS: Final = (*checks.FAULTS, KafkaError)


class Doctor(OperatorCommand):
    """Check broker, transactions, rights, topics, store, device, data folder and web port; exits with 1 on a fault."""

    async def answer(self, **options: Any) -> Report:
        """Runs every check, whatever the others find."""
        rows = await examine(self.ours)
        lines = [f"{'FAULT' if not row['ok'] else 'ok':5}  {row['check']:13}{row['detail']}" for row in rows]
        faults = sum(not row["ok"] for row in rows)
        lines.append("Nothing is wrong." if not faults else f"{faults} of {len(rows)} checks found a fault.")
        return Report({"ok": not faults, "checks": rows}, lines, ok=not faults)


async def examine(app: App) -> list[dict[str, Any]]:
    """One row a check: check, ok, detail."""
    rows: list[dict[str, Any]] = []
    connection: Connection | None = None

    async def reached() -> str:
        nonlocal connection
        detail, connection = await checks.broker(app)
        return detail

    async def look(name: str, check: Awaitable[str]) -> None:
        try:
            rows.append({"check": name, "ok": True, "detail": await check})
        except FAULTS as error:
            rows.append({"check": name, "ok": False, "detail": str(error) or type(error).__name__})

    await look("broker", reached())
    if connection is not None:
        await look("transactions", checks.transactions(app, connection))
        await look("rights", checks.may(app, connection))
        await look("topics", checks.topics(app, connection))
    await look("device", checks.device(app))
    await look("store", checks.store(app))
    await look("data folder", checks.data_folder(app))
    await look("web", checks.web(app))
    return rows
