"""`faust -A app knowledge`: how much a worker knows, and what answers a question."""

from __future__ import annotations

import textwrap
from typing import Any, Final

from faust.cli.base import argument, option

from cli.command import OperatorCommand, offering
from cli.report import Report, columns
from cli.views import get
from core.errors import UsageError

WIDTH: Final = 110
LINES: Final = 4
"""Of a passage that are shown."""


class Knowledge(OperatorCommand):
    """Ask a running worker how much it knows, or what answers a question.

    knowledge status: documents, passages, what is still to be made. knowledge search QUESTION: the passages that answer
    it best.
    """

    options = offering(
        argument("action", required=False),
        argument("question", required=False),
        option("--tenant", default=None, help="search: whose knowledge; by default what belongs to no tenant."),
        option("--tag", "tags", multiple=True, help="search: a tag that a document must have; may be repeated."),
        option("--count", default=5, show_default=True, type=int, help="search: passages, at most."),
        option("--worker", default=None, metavar="URL", help="Any worker; by default this machine's."),
    )

    async def answer(
        self, action: str | None = None, question: str | None = None, worker: str | None = None, **options: Any
    ) -> Report:
        """Raises UsageError for another action, SettingsError where no worker answers."""
        settings = self.ours.settings
        match action, question:
            case (None | "status", None):
                status, document = await get(settings, worker, "knowledge", {})
                return _refused(document) if status != 200 else Report(document, counts(document))
            case ("search", str()):
                query = {"q": question, "count": str(options["count"]), "tags": ",".join(options["tags"])}
                if options["tenant"] is not None:
                    query["tenant"] = options["tenant"]
                status, document = await get(settings, worker, "knowledge/search", query)
                return _refused(document) if status != 200 else Report(document, passages(document))
        raise UsageError("there is `knowledge status` and `knowledge search QUESTION`")


def _refused(document: dict[str, Any]) -> Report:
    return Report(document, [str(document["message"])], ok=False)


def counts(document: dict[str, Any]) -> list[str]:
    """What `knowledge status` shows of GET /knowledge."""
    shown = ("documents", "passages", "vectors", "pending", "failed", "embedder")
    table = columns(shown, [tuple("-" if document[name] is None else document[name] for name in shown)])
    return [*table, *_unranked((document.get("reranker") or {}).get("error"))]


def passages(document: dict[str, Any]) -> list[str]:
    """What `knowledge search` shows of GET /knowledge/search."""
    lines = []
    for number, one in enumerate(document["found"], start=1):
        where = " > ".join(dict.fromkeys(filter(None, (one["title"] or one["document"], *one["headings"]))))
        lines.append(f"{number}. {where}  ({one['document']}, characters {one['start']}-{one['end']})")
        lines += textwrap.wrap(
            one["text"], WIDTH, initial_indent="   ", subsequent_indent="   ", max_lines=LINES, placeholder=" …"
        )
    return [*(lines or ["Nothing that is known has to do with it."]), *_unranked(document.get("unranked"))]


def _unranked(why: str | None) -> list[str]:
    return [] if why is None else ["", f"Not reranked: {why}."]
