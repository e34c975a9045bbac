"""model -> its accepted deployment. Written by the judge of control requests alone, in the model's own partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.errors import RequestRefusedError
from core.events import Action, Deployment
from engine.table import Table


class Deployments(Table[str, Deployment]):
    """The state that requests are judged against; `deployments` publishes it."""

    name = "deployments"
    of_sessions = False

    def describe(self, shard: Any, raw: bytes) -> dict[str, Any]:
        """For people."""
        return self.decode(raw).model_dump(mode="json", exclude_none=True)


def judge(model: str, action: Action, now: Deployment | None, versions: Sequence[str], ts: int) -> Deployment:
    """The state that an accepted request leads to. Raises RequestRefusedError, which says what to do.

    now: the state so far; versions: what the store holds of the model; ts: ms since epoch.
    """
    revision = now.revision if now else 0
    if action.based_on is not None and action.based_on != revision:
        raise RequestRefusedError(
            f"the request is based on revision {action.based_on} of {model}, which is at {revision}: look at /models "
            "and send it again"
        )
    match action.action:
        case "deploy" | "promote":
            return _deploy(model, action, now, versions, ts)
        case other:
            raise RequestRefusedError(f"action {other!r} is not offered by this release; deploy and promote are")


def _deploy(model: str, action: Action, now: Deployment | None, versions: Sequence[str], ts: int) -> Deployment:
    version = action.version
    if version is None:
        raise RequestRefusedError(f'a request to {action.action} {model} names no version; send {{"active": "2"}}')
    if version not in versions:
        raise RequestRefusedError(
            f"{model}@{version} is not in the store, which has {', '.join(versions) or 'no version of it'}: put its "
            "folder there first"
        )
    return Deployment(
        model=model,
        revision=(now.revision if now else 0) + 1,
        active=version,
        fallback=action.fallback or (now.fallback if now else None),
        limits=action.limits or (now.limits if now else {}),
        response=action.response or (now.response if now else None),
        since=ts,
        author=action.author,
        reason=action.reason,
    )


deployments = Deployments()
