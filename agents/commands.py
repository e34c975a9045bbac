"""What a person tells the detectors of a version: control -> its judge -> scores -> who keeps their state."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from core.errors import RequestRefusedError
from core.events import Action
from core.topics import SCORES
from engine.batch import Slice
from engine.publisher import partition_of
from engine.tracing import output_headers
from models.drift.command import Command
from models.drift.monitor import KINDS

DETECTORS: Final = ("reset", "acknowledge", "resolve")
"""Actions that concern them."""
OURS: Final = ("drift", "limits", "deployments")
"""Authors that are no persons."""
_ALERT: Final = re.compile(r".+?/\d+/\d+/([a-z_]+)/(.+)/(?:opened|worsened|resolved)(?:/reminder)?", re.DOTALL)
_encode = msgspec.msgpack.Encoder().encode


def pass_on(s: Slice[Action], model: str, action: Action, active: str | None) -> None:
    """Sends it to the detectors, in the transaction of the request. Raises RequestRefusedError for what they can't do.

    active: the version that is meant where the request names none.
    """
    version = action.version or active
    if version is None:
        raise RequestRefusedError(f"{model} has no active version: name the one whose detectors are meant")
    if not (action.author or "").strip() or action.author in OURS:
        raise RequestRefusedError(f"only a person may {action.action}: say who, as the request's author")
    kind = subject = None
    if action.alert is not None:
        if (found := _ALERT.fullmatch(action.alert)) is None:
            raise RequestRefusedError(f"{action.alert!r} is no alert's id: SOURCE/KIND/SUBJECT/STATE, as on `alerts`")
        kind, subject = found.groups()
        if subject != f"{model}@{version}" or kind not in KINDS:
            raise RequestRefusedError(
                f"{action.alert!r} is no condition of {model}@{version}: their kinds are {', '.join(KINDS)}"
            )
    key = f"{model}@{version}".encode()
    command = Command(action.action, kind, subject, action.author, str(s.source(0)), s.records[0].timestamp)  # type: ignore[arg-type]
    headers = output_headers(s.topic, s.partition, s.records[:1], s.parents)
    s.emit(SCORES, [key], [_encode(command)], headers, partition_of(key, s.task.engine.settings.partitions))
