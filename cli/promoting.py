"""`faust -A app models promote NAME VERSION`: asks the model's judge, and waits for its word."""

from __future__ import annotations

import uuid
from typing import Final

from pydantic import TypeAdapter, ValidationError

from cli.asking import WAIT_S, Asked, ask
from cli.report import Report
from core.errors import RequestRefusedError, UsageError
from core.events import Action, Alert, Deployment, ModelName
from core.topics import ALERTS, DEPLOYMENTS
from engine.connection import Connection

_MODEL_NAME: Final = TypeAdapter(ModelName)


async def promote(
    connection: Connection,
    model: str,
    version: str,
    *,
    author: str | None = None,
    reason: str | None = None,
    based_on: int | None = None,
    wait_s: float = WAIT_S,
) -> Report:
    """Makes a version the active one, and reports the revision that it became, or that the request waits.

    Raises UsageError for what can't be a version, RequestRefusedError with the judge's reason, SettingsError where the
    broker has no such application.
    """
    try:
        _MODEL_NAME.validate_python(model)
        action = Action(
            action="promote", version=version, id=uuid.uuid4().hex, author=author, reason=reason, based_on=based_on
        )
    except ValidationError as error:
        raise UsageError("; ".join(f"{(*one['loc'], 'model')[0]}: {one['msg']}" for one in error.errors())) from None

    def answered(asked: Asked, answer: Alert | Deployment) -> Alert | Deployment | None:
        if isinstance(answer, Alert):
            return answer if answer.evidence.get("request") == asked.source else None
        return answer if (answer.model, answer.since, answer.active) == (model, asked.ts, version) else None

    answer: Alert | Deployment | None
    asked, answer = await ask(connection, model, action, [ALERTS, DEPLOYMENTS], answered, wait_s)
    if isinstance(answer, Alert):
        raise RequestRefusedError(answer.title)
    document = {"model": model, "version": version, "request": asked.source}
    if answer is None:
        return Report(
            document | {"state": "waiting"},
            [
                f"Not done yet: no worker has answered within {wait_s:g} s. The request waits as {asked.source}, "
                f"and is judged once a worker has partition {asked.partition}."
            ],
        )
    return Report(
        document | {"state": "accepted", "revision": answer.revision},
        [f"{model}@{version} is revision {answer.revision}; workers load it now. ({asked.source})"],
    )
