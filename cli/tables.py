"""`faust -A app tables`: what is declared, and how far each changelog is; `tables get` reads, `tables erase` erases."""

from __future__ import annotations

from typing import Any

from faust.cli.base import argument, option

from cli.command import OperatorCommand, offering
from cli.erasing import erase, key_of
from cli.reach import reach
from cli.reading import ends
from cli.report import Report, columns
from cli.views import value
from core.errors import SettingsError, UsageError
from core.topics import changelog


class Tables(OperatorCommand):
    """Show every table, the version of its values, its changelog topic, and the end offsets of that.

    tables list: the same. tables get TABLE KEY: the value, as a worker's web view shows it.
    tables erase SESSION: erase everything that the tables hold of a session, and wait until it is done.
    """

    options = offering(
        argument("action", required=False),
        argument("first", required=False, metavar="[TABLE|SESSION]"),
        argument("key", required=False),
        option("--session", default=None, help="get: the session of the key, where the key doesn't tell it."),
        option("--worker", default=None, metavar="URL", help="get: any worker; by default this machine's."),
    )

    async def answer(
        self, action: str | None = None, first: str | None = None, key: str | None = None, **options: Any
    ) -> Report:
        """Tables are known without a broker; their changelogs aren't. Raises UsageError for another action."""
        match action, first, key:
            case (None | "list", None, None):
                return await self._listed()
            case ("get", str(), str()):
                return await value(self.ours.settings, options["worker"], first, key, options["session"])
            case ("erase", str(), None):
                key_of(first)  # before the broker is asked
                return await erase(await reach(self.ours.settings), first)
        raise UsageError("there is `tables list`, `tables get TABLE KEY` and `tables erase SESSION`")

    async def _listed(self) -> Report:
        settings, tables = self.ours.settings, self.ours.engine.tables
        names = {name: settings.topic_prefix + changelog(settings.app_id, name).name for name in sorted(tables)}
        offsets: dict[str, dict[int, int]] = {}
        error: str | None = None
        try:
            offsets = await ends(await reach(settings), list(names.values()))
        except SettingsError as unreachable:
            error = str(unreachable)
        rows: list[dict[str, Any]] = [
            {
                "name": name,
                "help": (type(tables[name]).__doc__ or "").strip().partition("\n")[0],
                "version": tables[name].schema.version,
                "changelog": topic,
                "end_offsets": {str(number): end for number, end in offsets[topic].items()}
                if topic in offsets
                else None,
            }
            for name, topic in names.items()
        ]
        lines = columns(
            ("name", "version", "changelog", "written", "help"),
            [
                (row["name"], row["version"], row["changelog"], _written(row["end_offsets"]), row["help"])
                for row in rows
            ],
        )
        document: dict[str, Any] = {"tables": rows}
        if error is not None:
            document["error"] = error
            lines += ["", error]
        return Report(document, lines, ok=error is None)


def _written(offsets: dict[str, int] | None) -> object:
    """How far the changelog is over all partitions: records, and the marks of commits between them."""
    return "-" if offsets is None else sum(offsets.values())
