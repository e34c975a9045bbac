"""`faust -A app models promote|canary|shadow|...`: asks the model's judge, and waits for its word."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from cli.asking import WAIT_S, ask
from cli.report import Report
from core.errors import RequestRefusedError, UsageError
from core.events import Action, Alert, Deployment, ModelName
from core.topics import ALERTS, DEPLOYMENTS
from engine.connection import Connection
from models.limits import shown

REFUSED: Final = "request_refused"
"""Kind of the alert that a refused request is answered with."""
NO_LIMITS: Final = "none"
_MODEL_NAME: Final = TypeAdapter(ModelName)


def action_of(action: str, model: str, version: str | None, limits: Iterable[str] = (), **given: Any) -> Action:
    """The request. limits: NAME=VALUE each, or `none` for a canary without. Raises UsageError for what can't be one."""
    try:
        _MODEL_NAME.validate_python(model)
        return Action.model_validate(
            {"action": action, "version": version, "id": uuid.uuid4().hex, "limits": _limits(tuple(limits)), **given}
        )
    except ValidationError as error:
        raise UsageError(
            "; ".join(f"{'.'.join(map(str, one['loc'])) or 'model'}: {one['msg']}" for one in error.errors())
        ) from None


async def request(connection: Connection, model: str, action: Action, wait_s: float = WAIT_S) -> Report:
    """Reports the revision that the request became, or that it waits for a worker.

    Raises RequestRefusedError with the judge's reason, SettingsError where the broker has no such application.
    """
    answer: Alert | Deployment | None
    asked, answer = await ask(connection, model, action, [ALERTS, DEPLOYMENTS], _judged, wait_s)
    document = {"model": model, "action": action.action, "version": action.version, "request": asked.source}
    if isinstance(answer, Alert):
        raise RequestRefusedError(answer.title)
    if answer is None:
        return Report(
            document | {"state": "waiting"},
            [
                f"Not done yet: no worker has answered within {wait_s:g} s. The request waits as {asked.source}, "
                f"and is judged once a worker has partition {asked.partition}."
            ],
        )
    deployment = answer.model_dump(mode="json", exclude_none=True)
    lines = [f"{model} is at revision {answer.revision}: {described(answer)}. Workers follow now. ({asked.source})"]
    if answer.canary is not None and answer.limits:
        lines.append(
            f"Limits of the canary: {shown(answer.limits)}. `models compare {model}` tells where it stands with them."
        )
    if action.action == "backfill" and answer.backfill is not None:
        lines.append(
            f"What began late of {', '.join(answer.backfill.features)} is filled; `models show {model}` tells how far."
        )
    return Report(document | {"state": "accepted", "revision": answer.revision, "deployment": deployment}, lines)


def described(deployment: Deployment) -> str:
    """Who answers, in words."""
    if deployment.active is None:
        return "no version answers"
    said = f"{deployment.active}{_in(deployment, deployment.active)} answers"
    if deployment.canary is not None:
        canary = deployment.canary.version
        said += f", {canary}{_in(deployment, canary)} for {100 * deployment.canary.share:.4g} % of the sessions"
    said += "".join(f", {version}{_in(deployment, version)} in its shadow" for version in deployment.shadow)
    return said + (", frozen" if deployment.frozen else "")


def _in(deployment: Deployment, version: str) -> str:
    return f" in {deployment.precision[version]}" if version in deployment.precision else ""


def _judged(answer: Alert | Deployment) -> Alert | Deployment | None:
    return answer if isinstance(answer, Deployment) or answer.kind == REFUSED else None


def _limits(given: tuple[str, ...]) -> dict[str, Any] | None:
    if not given:
        return None
    if given == (NO_LIMITS,):
        return {}
    limits: dict[str, Any] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or name in limits:
            raise UsageError(f"--limit {one}: give each limit once, as --limit max_error=0.01, or --limit {NO_LIMITS}")
        limits[name] = value
    return limits
