"""What a model is told of a session beside the talk: a text of the operator's with names, filled in from its state."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from core.facts import Value, filled, told_of
from core.messages import Message
from core.settings import Settings
from engine.batch import Slice
from tables.latest import latest
from tables.sessions import sessions

log = logging.getLogger(__name__)


class Facts:
    """The setting chat_facts, for each message."""

    def __init__(self, settings: Settings) -> None:
        self._text = settings.chat_facts
        self.wants_intent = told_of("intent", self._text)
        self._rows = {
            root: table
            for root, table in (("features", sessions.name), ("prediction", latest.name))
            if told_of(root, self._text)
        }
        self._missed: set[str] = set()

    def of(self, s: Slice[Message], told: Mapping[str, Any]) -> str | None:
        """The text; None where there is none. told: `session` and `intent` as rules see them."""
        if self._text is None:
            return None
        session = s.events[0].session.encode()
        known: dict[str, Any] = {"session": told.get("session"), "intent": told.get("intent")}
        known |= {root: _row(s, table, session) for root, table in self._rows.items()}
        return filled(self._text, lambda name: self._value(known, name))

    def _value(self, known: Mapping[str, Any], name: str) -> Value:
        root, _, rest = name.partition(".")
        value = _found(known.get(root), rest)
        if value is None and known.get(root) and name not in self._missed:
            # Once: a session without the feature is nothing odd, a name that no session has is a mistake.
            self._missed.add(name)
            log.warning(
                "HOMUNCULUS_CHAT_FACTS names {%s}, which a session hasn't: there are %s", name, _names(known[root])
            )
        return value


def _row(s: Slice[Message], table: str, session: bytes) -> dict[str, Any]:
    """What a table of the partition has of a session, as its view shows it; empty where it has nothing."""
    shard = s.task.shards.get(table)
    raw = None if shard is None else shard.finished(session)
    if shard is None or raw is None:
        return {}
    found: dict[str, Any] = s.task.engine.tables[table].describe(shard, raw)
    return found


def _found(tree: Any, path: str) -> Value:
    """The value below a dotted path; names may have dots of their own, as `mean.value` has."""
    if not isinstance(tree, Mapping):
        return None
    if path in tree:
        value = tree[path]
        return value if isinstance(value, str | int | float | bool) else None
    for name, below in tree.items():
        if path.startswith(f"{name}.") and (value := _found(below, path[len(name) + 1 :])) is not None:
            return value
    return None


def _names(tree: Mapping[str, Any]) -> str:
    return ", ".join(sorted(name for name, value in tree.items() if not isinstance(value, Mapping)))[:500]
