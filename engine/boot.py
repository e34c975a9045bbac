"""What Faust starts, and how it ends, without its sleeps: the partitions of a worker with a name wait for both."""

from __future__ import annotations

from typing import Any, NoReturn

import faust
from faust.app.base import BootStrategy
from faust.tables import TableManager
from mode import ServiceT

from engine.exit import leave


class Worker(faust.Worker):
    """Faust's, without a spinner that would keep our log from a terminal, and gone once everything has stopped."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.spinner = None

    async def _sentinel_task(self) -> None:
        """mode sleeps for a second before it closes the loop: for nothing, its tasks have been gathered by then."""

    def execute_from_commandline(self) -> NoReturn:
        """Runs until it is stopped, and ends the process."""
        try:
            super().execute_from_commandline()
        except SystemExit as end:
            leave(int(end.code or 0))


class Tables(TableManager):
    """There are none of Faust's, so there is nobody to wait for: Faust sleeps for a second, in which agents may declare
    more of them, and only then joins the group."""

    async def on_start(self) -> None:
        """What Faust does afterwards."""
        await self._update_channels()
        await self.recovery.start()


class Boot(BootStrategy):
    """What Faust starts. Its own web server, which asks nobody for a token, is not among it."""

    def web_server(self) -> list[ServiceT]:
        """None: App._begin() starts ours."""
        return []
