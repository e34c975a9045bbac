"""`faust -A app drift`: what the detectors of each version see, and what a person tells them."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any, Final

import click
from faust.cli.base import argument, option
from pydantic import ValidationError

from cli.asking import WAIT_S, ask
from cli.command import OperatorCommand, offering
from cli.reach import reach
from cli.reading import newest
from cli.report import Report, columns, moment
from cli.requesting import REFUSED
from core.errors import ModelNotFoundError, RequestRefusedError, UsageError
from core.events import Action, Alert
from core.topics import ALERTS, DEPLOYMENTS, changelog
from engine.connection import Connection
from models.drift.report import html
from tables.drift import page, references, watches

TOLD: Final = {"acknowledge": "acknowledged", "resolve": "resolved", "reset": "reset"}


class Drift(OperatorCommand):
    """Show what the detectors of each version see.

    \b
    drift list                        every version, and what is wrong with it
    drift show NAME[@VERSION]         one of them; without a version the active one
    drift report NAME[@VERSION]       the same as a page for a browser, which can be sent on
    drift acknowledge NAME[@VERSION]  its open conditions are known: no reminders. One of them with --alert ID
    drift resolve NAME[@VERSION]      they have ended
    drift reset NAME[@VERSION]        its detectors begin anew: its next answers are what it is held to
    """

    options = offering(
        argument("action", required=False),
        argument("name", required=False),
        option(
            "--out",
            type=click.Path(path_type=Path, dir_okay=False),
            default=None,
            help="report: the file. Default: NAME@VERSION.html.",
        ),
        option("--alert", default=None, help="acknowledge, resolve: the id of the alert that is meant."),
        option("--author", default=None, help="acknowledge, resolve, reset: who says so."),
    )

    async def answer(self, action: str | None = None, name: str | None = None, **options: Any) -> Report:
        """Raises UsageError for another action, ModelNotFoundError for a version that was never seen."""
        out, alert, author = options["out"], options["alert"], options["author"]
        if (alert or author) and action not in TOLD:
            raise UsageError(f"--alert and --author are of {', '.join(TOLD)}")
        if out is not None and action != "report":
            raise UsageError("--out is of `drift report`")
        match action, name:
            case (None | "list", None):
                return _listed(await _pages(await reach(self.ours.settings)))
            case ("show", str()):
                return _shown(await _page(await reach(self.ours.settings), name))
            case ("report", str()):
                found = await _page(await reach(self.ours.settings), name)
                return await asyncio.to_thread(_written, found, out or Path(f"{found['subject']}.html"))
            case (str(), str()) if action in TOLD:
                return await _told(await reach(self.ours.settings), action, name, alert, author)
        raise UsageError(
            "there is `drift list`, `drift show|report NAME[@VERSION]` and `drift acknowledge|resolve|reset "
            "NAME[@VERSION] --author WHO`"
        )


async def _pages(connection: Connection) -> dict[str, dict[str, Any]]:
    app_id = connection.settings.app_id
    held = await newest(connection, changelog(app_id, references.name))
    seen = await newest(connection, changelog(app_id, watches.name))
    return {key: page(key, held[key], raw) for key, raw in seen.items() if key in held}


async def _page(connection: Connection, name: str) -> dict[str, Any]:
    pages = await _pages(connection)
    key = name if "@" in name else await _active(connection, name)
    if key not in pages:
        raise ModelNotFoundError(f"no answer of {key} was looked at yet; `faust -A app drift` shows what was")
    return pages[key]


async def _active(connection: Connection, model: str) -> str:
    deployment = (await newest(connection, DEPLOYMENTS)).get(model)
    if deployment is None or deployment.active is None:
        raise ModelNotFoundError(f"nothing is deployed of a model {model!r}: name the version, as {model}@VERSION")
    return f"{model}@{deployment.active}"


def _listed(pages: dict[str, dict[str, Any]]) -> Report:
    rows = [(key, found["answers"], *_means(found), _open(found) or "-") for key, found in sorted(pages.items())]
    lines = columns(("version", "answers", "confidence", "reference", "wrong"), rows)
    return Report(list(pages.values()), lines if rows else ["No answers were looked at yet."])


def _means(found: dict[str, Any]) -> tuple[str, str]:
    confidence = found.get("confidence") or {}
    points = (confidence.get("recent") or {}).get("points") or []
    reference = confidence.get("reference") or {}
    now = f"{points[-1]['mean']:.3f}" if points else "-"
    return now, f"{reference['mean']:.3f}" if reference.get("mean") is not None else "-"


def _open(found: dict[str, Any]) -> str:
    return ", ".join(f"{one['kind']} since {moment(one['since'])}" for one in found["open"])


def _shown(found: dict[str, Any]) -> Report:
    lines = [f"{found['subject']}: {_open(found) or 'nothing is wrong'}", "", *json.dumps(found, indent=2).splitlines()]
    return Report(found, lines)


def _written(found: dict[str, Any], out: Path) -> Report:
    out.write_text(html(found), encoding="utf-8")
    document = {"file": str(out), "version": found["subject"]}
    return Report(document, [f"{out}: {found['subject']}, {_open(found) or 'nothing is wrong'}"])


async def _told(connection: Connection, action: str, name: str, alert: str | None, author: str | None) -> Report:
    if not author:
        raise UsageError(f"only a person may {action}: say who, with --author")
    model, _, version = name.partition("@")
    try:
        request = Action.model_validate(
            {"action": action, "version": version or None, "alert": alert, "author": author, "id": uuid.uuid4().hex}
        )
    except ValidationError as error:
        raise UsageError("; ".join(f"{one['loc'][0]}: {one['msg']}" for one in error.errors())) from None
    asked, answer = await ask(connection, model, request, [ALERTS], _answered, WAIT_S)
    document: dict[str, Any] = {"version": name, "action": action, "request": asked.source}
    if answer is None:
        said = f"Not done yet: no worker has answered within {WAIT_S:g} s. The request waits as {asked.source}."
        return Report(document | {"state": "waiting"}, [said])
    if answer.kind == REFUSED:
        raise RequestRefusedError(answer.title)
    return Report(document | {"state": "done", "evidence": answer.evidence}, [f"{answer.title} ({asked.source})"])


def _answered(alert: Alert) -> Alert | None:
    return alert if alert.kind == REFUSED or alert.kind in {f"drift_{told}" for told in TOLD.values()} else None
