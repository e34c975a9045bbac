"""`faust -A app worker`: Faust's own, with a banner of what is so here: Faust's tells of tables that we don't have."""

from __future__ import annotations

import os
import platform
import socket
from typing import Any, cast

from faust.cli.worker import worker

from engine.app import App


class Worker(worker):
    """Start a worker."""

    def banner(self, worker: Any) -> str:
        """What is printed before the worker starts: who it is, and where its state, its pages and its log are."""
        app = cast(App, worker.app)
        settings = app.settings
        rows = [
            ("id", app.conf.id),
            ("broker", ", ".join(map(str, app.conf.broker))),
            ("state", f"RocksDB in {app.engine.application_folder.absolute()}"),
            ("models", settings.model_store),
            *([("web", str(app.web_server_url))] if app.conf.web_enabled else []),
            ("log", f"{worker.logfile or 'stderr'} ({settings.log_level}, {settings.log_format})"),
            ("pid", str(os.getpid())),
            ("hostname", socket.gethostname()),
            ("platform", f"{platform.python_implementation()} {platform.python_version()} on {platform.system()}"),
        ]
        table = self.table(rows, title=self.faust_ident())
        table.inner_heading_row_border = False
        table.inner_row_border = False
        return str(table.table)
