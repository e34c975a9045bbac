"""Before any model: what rule sets stop isn't put to it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from core.errors import RequestRefusedError
from core.events import Observation
from core.messages import Message
from core.rules import RuleSet
from core.topics import RULES
from engine.connection import Connection
from engine.feed import Feed
from engine.rules import CompiledSet, Judgement

if TYPE_CHECKING:
    from engine.batch import Batch

log = logging.getLogger(__name__)

ASIDE_S: Final = 0.001
"""Where all rules together take longer they are asked beside the event loop."""
SMOOTHING: Final = 0.1


class Gate:
    """The rule sets of a worker, as `rules` has them now."""

    def __init__(self) -> None:
        self.sets: dict[str, CompiledSet] = {}
        """By name; asked in the order of their names: whoever stops a record first decides."""
        self.counts = Counter[tuple[str, str, str]]()
        """(set, rule or `otherwise`, what was done: pass, stop, would_stop) -> records."""
        self.broken: dict[str, str] = {}
        """Name of a set whose newest record can't be used -> why; the one before goes on."""
        self.ready = asyncio.Event()
        """Set once all that stood on `rules` has been read."""
        self.ready.set()
        self._taken_s = 0.0

    async def follow(self, connection: Connection) -> None:
        """Reads `rules` for ever."""
        self.ready.clear()
        feed = Feed(connection, RULES, self.put, self._on_foreign)
        reading = asyncio.create_task(feed.run())
        try:
            await feed.caught_up.wait()
            self.ready.set()
            await reading
        finally:
            reading.cancel()

    async def put(self, name: str, rules: RuleSet | None) -> None:
        """A set takes the place of the one before; None: there is none any more. One that can't be compiled changes
        nothing."""
        if rules is None:
            self.sets.pop(name, None)
            self.broken.pop(name, None)
            log.info("Rule set %r is gone", name)
            return
        try:
            compiled = await asyncio.to_thread(CompiledSet, name, rules)
        except RequestRefusedError as error:
            await self._on_foreign(name, str(error))
            return
        self.sets = dict(sorted((self.sets | {name: compiled}).items()))
        self.broken.pop(name, None)
        log.info("Rule set %r: %d rules%s", name, len(rules.rules), ", dry run" if rules.dry_run else "")

    async def _on_foreign(self, name: str, why: str) -> None:
        self.broken[name] = why
        log.error("Rule set %r is not taken, the one before it stays: %s", name, why)

    def applies(self, topic: str) -> bool:
        """Whether a set is asked about a topic's records."""
        return any(topic in one.rules.topics for one in self.sets.values())

    def looks_at(self, topic: str, variable: str) -> bool:
        """Whether a rule about a topic's records has a variable in its condition."""
        return any(topic in one.rules.topics and variable in one.variables for one in self.sets.values())

    async def judge(self, topic: str, facts: Mapping[str, Any]) -> Judgement | None:
        """What stops a record, or else changes its session; None: nothing does."""
        if self._taken_s > ASIDE_S:
            return await asyncio.to_thread(self._judge, topic, facts)
        return self._judge(topic, facts)

    def _judge(self, topic: str, facts: Mapping[str, Any]) -> Judgement | None:
        began, found = time.perf_counter(), None
        for one in self.sets.values():
            if topic not in one.rules.topics:
                continue
            judgement = one.judge(facts)
            stops = judgement.verdict == "stop"
            done = "would_stop" if stops and one.rules.dry_run else judgement.verdict
            self.counts[one.name, judgement.rule or "otherwise", done] += 1
            if one.rules.dry_run:
                continue
            if stops or (judgement.changes and found is None):
                found = judgement
            if stops:
                break
        self._taken_s += SMOOTHING * (time.perf_counter() - began - self._taken_s)
        return found

    async def admit(self, batch: Batch[Observation]) -> None:
        """Takes out of a batch what is stopped: it is neither scored nor seen by its session."""
        await self.ready.wait()
        if not self.applies("observations"):
            return
        for s in batch.slices:
            kept = []
            for i, event in enumerate(s.events):
                judgement = await self.judge("observations", facts_of_observation(event))
                if judgement is None or judgement.verdict == "pass":
                    kept.append(i)
            if len(kept) < len(s.events):
                s.events = [s.events[i] for i in kept]
                s.records = [s.records[i] for i in kept]


def facts_of_observation(event: Observation) -> dict[str, Any]:
    """What expressions may look at: the event, its features, and its attributes by their own names."""
    told = {"id": event.id, "session": event.session, "ts": event.ts, "topic": "observations"}
    return _facts(event.attributes, told, {"features": event.features, "tenant": event.tenant})


def facts_of_message(message: Message, began: int | None, turns: int) -> dict[str, Any]:
    """What expressions may look at: the message, its session, and its attributes by their own names.

    began: event time of the session's first turn that is still known, ms since epoch.
    """
    told = {
        "id": message.id,
        "session": message.session,
        "ts": message.ts,
        "text": message.text,
        "role": message.role,
        "topic": "messages",
    }
    duration = 0.0 if began is None else max(0.0, (message.ts - began) / 1e3)
    session = {"id": message.session, "duration": duration, "turns": turns}
    user = {} if message.user is None else {"id": message.user}
    return _facts(message.attributes, told, {"session": session, "user": user, "tenant": message.tenant})


def _facts(attributes: Mapping[str, Any] | None, event: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Attributes win over what is known otherwise, field by field."""
    facts: dict[str, Any] = more | {"event": event}
    for name, value in (attributes or {}).items():
        known = facts.get(name)
        facts[name] = known | value if isinstance(known, dict) and isinstance(value, dict) else value
    return facts
