"""`faust -A app doctor`: everything that a worker needs, looked at before it starts."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from aiokafka.errors import KafkaError

from cli import certificates, checks
from cli.command import OperatorCommand
from cli.report import Report
from engine.app import App
from engine.connection import Connection

FAULTS: Final = (*checks.FAULTS, KafkaError)


class Doctor(OperatorCommand):
    """Check broker, rights, topics, clock, certificates, models, data folder and web port; exits with 1 on a fault."""

    async def answer(self, **options: Any) -> Report:
        """Runs every check, whatever the others find."""
        rows = await examine(self.ours)
        lines = [f"{_word(row):5}  {row['check']:13}{row['detail']}" for row in rows]
        faults = sum(not row["ok"] for row in rows)
        soon = sum(row["soon"] for row in rows)
        well = f"Nothing is wrong yet: {soon} of {len(rows)} checks say what will be." if soon else "Nothing is wrong."
        lines.append(well if not faults else f"{faults} of {len(rows)} checks found a fault.")
        return Report({"ok": not faults, "checks": rows}, lines, ok=not faults)


def _word(row: dict[str, Any]) -> str:
    return "FAULT" if not row["ok"] else "soon" if row["soon"] else "ok"


async def examine(app: App) -> list[dict[str, Any]]:
    """One row a check: check, ok, soon (all is well, but won't be for long), detail."""
    rows: list[dict[str, Any]] = []
    connection: Connection | None = None

    async def reached() -> str:
        nonlocal connection
        detail, connection = await checks.broker(app)
        return detail

    async def look(name: str, check: Awaitable[str]) -> None:
        ok, soon = True, False
        try:
            detail = await check
        except checks.SoonError as error:
            soon, detail = True, str(error)
        except FAULTS as error:
            ok, detail = False, str(error) or type(error).__name__
        rows.append({"check": name, "ok": ok, "soon": soon, "detail": detail})

    await look("broker", reached())
    if connection is not None:
        await look("transactions", checks.transactions(app, connection))
        await look("rights", checks.may(app, connection))
        await look("topics", checks.topics(app, connection))
        await look("clock", checks.clock(app, connection))
    await look("broker TLS", certificates.of_brokers(app, connection))
    await look("device", checks.device(app))
    await look("store", checks.store(app))
    await look("data folder", checks.data_folder(app))
    await look("web", checks.web(app))
    await look("web TLS", certificates.of_web(app))
    return rows
