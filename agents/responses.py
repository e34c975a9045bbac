"""A drift -> what the deployment declares for it: asked for on `control` by who sees it, done by the model's judge."""

from __future__ import annotations

import logging
from typing import cast

from core.events import Action, Alert, Deployment, Retrain
from core.topics import ALERTS, CONTROL, OBSERVATIONS, RETRAIN
from engine.batch import Slice
from engine.codec import codec_of
from engine.publisher import partition_of
from engine.tracing import output_headers
from models.drift.condition import Change

log = logging.getLogger(__name__)

AUTHOR = "drift"
"""Who asks."""
_encode = codec_of(Action).encode


def asked(change: Change, version: str, deployment: Deployment | None, alert: str) -> Action | None:
    """The request that answers a drift, based on the deployment as it is known here: whatever a person has asked for
    meanwhile comes first. None where nothing is declared, or the version computes for comparison alone.

    version: the one that drifts; alert: the id of the alert that tells of it.
    """
    if deployment is None or unasked(change, version, deployment) is not None:
        return None
    canary = _on_trial(version, deployment)
    return Action(
        action="rollback" if canary else "respond",
        version=version,
        response=None if canary else deployment.response,
        based_on=deployment.revision,
        alert=alert,
        began=_began(change),
        until=change.ts,
        reason=change.title[:2000],
        author=AUTHOR,
    )


def unasked(change: Change, version: str, deployment: Deployment | None) -> str | None:
    """Why nothing is asked for; None: something is."""
    if change.kind != "drift":
        return "drift alone is answered"
    if change.state == "resolved":
        return "it is over"
    if change.state != "opened" or change.reminder:
        return "its beginning alone is answered"
    if deployment is None or not deployment.response:
        return "no response is declared for it"
    if version != deployment.active and not _on_trial(version, deployment):
        return "it answers nobody: it only computes for comparison, or not at all"
    return None


def _on_trial(version: str, deployment: Deployment) -> bool:
    return deployment.canary is not None and deployment.canary.version == version


def _began(change: Change) -> int | None:
    """Event time, ms since epoch, since which the stream has been another one, as far as the detectors can tell."""
    for found in (change.evidence.get("adwin"), change.evidence.get("window")):
        if isinstance(found, dict):
            return cast(int | None, found.get("ts", found.get("from_ts")))
    return None


def ask(s: Slice[bytes], model: str, action: Action, at: int) -> None:
    """Sends it with what the drift was found by, or not at all. at: the record that decided."""
    headers = output_headers(s.topic, s.partition, s.records[at : at + 1], s.parents)
    key, partitions = model.encode(), s.task.engine.settings.partitions
    s.emit(CONTROL, [key], [_encode(action)], headers, partition_of(key, partitions))
    log.warning("%s@%s drifts: %s is asked for", model, action.version, action.response or action.action)


def done(s: Slice[Action], model: str, action: Action, before: Deployment, after: Deployment) -> None:
    """Tells what was done, and asks for training where that is declared."""
    wanted = action.response or ""
    source, ts = str(s.source(0)), s.records[0].timestamp
    steps = []
    if action.action == "rollback":
        steps.append("it was a canary, and is rolled back")
    elif after.active != before.active:
        steps.append(f"{after.active} answers in its place")
    elif "fallback" in wanted:
        steps.append(f"no fallback, since {before.fallback or 'none'} is not in the store or active already")
    if "freeze" in wanted:
        steps.append("nothing is promoted until a person unfreezes it")
    if "retrain" in wanted:
        steps.append("training is asked for")
        request = Retrain(
            id=f"{source}/retrain/{model}",
            model=model,
            version=action.version or "",
            began=action.began,
            until=action.until or ts,
            sources=[s.task.engine.topic_name(OBSERVATIONS)],
            alert=action.alert,
            reason=action.reason,
            ts=ts,
        )
        s.send(RETRAIN, model, request)
    alert = Alert(
        id=f"{source}/drift_response/{model}/opened",
        kind="drift_response",
        severity="critical" if after.active == before.active and "fallback" in wanted else "warning",
        state="opened",
        subject=model,
        ts=ts,
        title=f"{model}@{action.version} drifts: {', '.join(steps)}",
        evidence={
            "request": source,
            "alert": action.alert,
            "response": wanted,
            "before": before.active,
            "active": after.active,
            "frozen": after.frozen,
            "revision": after.revision,
        },
    )
    s.send(ALERTS, model, alert)
