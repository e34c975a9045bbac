"""`faust -A app models`: what the store holds, and what is deployed of it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from cli.command import OperatorCommand
from cli.reach import reach
from cli.reading import newest
from cli.report import Report, columns
from core.errors import SettingsError
from core.events import Deployment
from core.topics import DEPLOYMENTS
from models.store import ModelStore


class Models(OperatorCommand):
    """Show every model: the versions in the store, and what the deployments topic says is live."""

    async def answer(self, **options: Any) -> Report:
        """The store is read without a broker; deployments aren't."""
        settings = self.ours.settings
        stored = await asyncio.to_thread(_stored, self.ours.engine.models.store)
        deployed: dict[str, Deployment] = {}
        error: str | None = None
        try:
            deployed = await newest(await reach(settings), DEPLOYMENTS)
        except SettingsError as unreachable:
            error = str(unreachable)
        rows = [
            {
                "name": name,
                "store": stored.get(name, []),
                "deployment": None
                if name not in deployed
                else deployed[name].model_dump(mode="json", exclude_none=True),
            }
            for name in sorted({*stored, *deployed})
        ]
        document: dict[str, Any] = {"model_store": settings.model_store, "models": rows}
        lines = columns(
            ("name", "in the store", "deployed", "revision", "since", "author"),
            [
                (name, ", ".join(stored.get(name, [])) or "-", *_deployment(deployed.get(name)))
                for name in sorted({*stored, *deployed})
            ],
        )
        if not rows:
            lines = [f"The store {settings.model_store} is empty, and nothing is deployed."]
        if error is not None:
            document["error"] = error
            lines += ["", error]
        return Report(document, lines, ok=error is None)


def _stored(store: ModelStore) -> dict[str, list[str]]:
    return {name: store.versions(name) for name in store.models()}


def _deployment(one: Deployment | None) -> tuple[object, ...]:
    if one is None:
        return ("-", "-", "-", "-")
    since = datetime.fromtimestamp(one.since / 1e3, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    return (one.active or "-", one.revision, since, one.author or "-")
