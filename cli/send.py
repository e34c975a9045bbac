"""`faust -A app send`: Faust's own, which looks first whether the broker lets it in."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any, NoReturn, cast

from faust.cli.send import send

from cli.command import FAULT
from cli.reach import reach
from core.errors import SettingsError
from engine import rights
from engine.app import App


class Send(send):
    """Send message to agent/topic."""

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Faust would show a traceback, without the reason."""
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        try:
            asyncio.run(_may_send(cast(App, self.app), {**self.kwargs, **kwargs}["entity"]))
        except SettingsError as error:
            print(f"{self.prog_name}: {error}", file=sys.stderr)
            sys.exit(FAULT)
        super().__call__(*args, **kwargs)


async def _may_send(app: App, entity: str) -> None:
    connection = await reach(app.settings)
    if not entity.startswith("@"):  # an agent's topic is Faust's to find
        await rights.check(connection, rights.Needed({entity: frozenset({rights.WRITE})}))
