"""The replay from day 180 on: days at a time, so that it doesn't outrun what is to happen by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from core.events import Action
from examples.purchases.data import DAY_MS
from examples.purchases.ledger import Ledger
from examples.purchases.process import Guarded
from examples.purchases.replay import AUTHOR, Replay
from examples.purchases.screen import Screen
from examples.purchases.story import Story
from examples.purchases.train import NAME
from examples.purchases.trainer import LIMITS
from examples.purchases.worker import Worker

STEP: Final = 5
"""Days sent at once, until there is an alarm. The alarm is late by as many."""
SMALL_STEP: Final = 2
"""Days sent at once while a candidate is tried."""
DETECT_S: Final = 30.0
"""Longest wait for detectors to see what is answered."""
RESPOND_S: Final = 30.0
TRAIN_S: Final = 120.0
END_S: Final = 30.0
"""For limits to be looked at."""
LOW_ALERTS: Final = 10
"""Answers with low confidence that are told singly, a minute."""


class Loop:
    """Watches a version until its successor has taken over."""

    def __init__(
        self, replay: Replay, ledger: Ledger, story: Story, worker: Worker, trainer: Guarded, screen: Screen
    ) -> None:
        self.live_at: dict[str, int] = {}
        """What happened -> when the worker's version of it began, ms since epoch: fallback, promoted."""
        self.trained_s = 0.0
        """From the request for training to a candidate that is accepted."""
        self._replay = replay
        self._ledger = ledger
        self._story = story
        self._worker = worker
        self._trainer = trainer
        self._screen = screen
        self._ts = np.array([event.ts for event in ledger.events], np.int64)

    async def begin(self, old: str) -> None:
        """As a person would: what the old version answered up to now is no reference for it, since it learnt from
        those very days."""
        await self._replay.ask(Action(action="reset", version=old, author=AUTHOR))
        self._say(
            f"from here {STEP} days at a time, since at this pace a day is over in {1e3 * self._pace_s():.0f} ms: "
            "detectors, trainer and limits take seconds, so the stream waits for them"
        )

    async def run(self) -> None:
        """Sends until the successor has taken over, or the stream ends. Raises StalledError, ProcessError."""
        story = self._story
        if not await self._until_alarm():
            self._say("the stream has ended, and no drift was seen")
            return
        await self._until_answered()
        began = time.monotonic()
        self._say("training is asked for; the stream waits: in life it would be the same day still")
        if not await story.until(lambda: story.candidate is not None, TRAIN_S):
            raise self._trainer.error(f"no candidate came within {TRAIN_S:g} s: {'; '.join(story.refused)}")
        self.trained_s = time.monotonic() - began
        await self._live(lambda told: (told.get("canary") or {}).get("version") == story.retrained, "try the candidate")
        self._say(f"version {story.retrained} is tried: {story.reason}")
        await self._until_promoted()

    async def _until_alarm(self) -> bool:
        story = self._story
        while story.alarm is None and await self._step(STEP):
            await self._detected()
        if story.alarm is None:
            return False
        assert story.alarm.alert is not None
        self._say(f"DRIFT: {story.alarm.alert.title}")
        return True

    async def _until_answered(self) -> None:
        story = self._story
        if not await story.until(lambda: story.answer is not None, RESPOND_S):
            raise self._worker.error(f"the drift wasn't answered within {RESPOND_S:g} s: {'; '.join(story.refused)}")
        deployment = story.answer.deployment if story.answer else None
        assert deployment is not None
        told = await self._live(lambda told: told.get("version") == deployment.active, "take the fallback")
        self.live_at["fallback"] = told["since"]
        self._say(f"version {deployment.active} answers again")

    async def _until_promoted(self) -> None:
        story, ledger = self._story, self._ledger
        wanted, retrained = int(LIMITS["min_events"]), story.retrained
        assert retrained is not None
        while story.ended is None and len(ledger.of(retrained)) < wanted and await self._step(SMALL_STEP):
            pass
        self._say(f"version {retrained} has answered {len(ledger.of(retrained)):,} purchases; its limits decide")
        if not await story.until(lambda: story.promoted is not None, END_S):
            ended = story.ended.alert.title if story.ended and story.ended.alert else "; ".join(story.refused)
            self._say(f"it wasn't promoted within {END_S:g} s: {ended}")
            return
        told = await self._live(lambda told: told.get("version") == retrained, "promote the candidate")
        self.live_at["promoted"] = told["since"]
        self._say(f"version {retrained} answers alone; the rest goes as fast as it is answered")

    async def _step(self, days: int) -> bool:
        """Sends some days and waits for all answers. Returns whether there was anything left to send."""
        sent, n = self._ledger.sent, len(self._ts)
        if sent == n:
            return False
        day = (int(self._ts[sent]) - int(self._ts[0])) // DAY_MS
        end = int(np.searchsorted(self._ts, int(self._ts[0]) + (day + days) * DAY_MS))
        await self._replay.send(end)
        await self._replay.answered(0)
        return True

    async def _detected(self) -> None:
        """Waits until the detectors have seen what was answered, up to the newest days: those wait for other
        partitions' in the detectors' order."""
        story, page = self._story, f"/drift/{NAME}@{self._story.version}"
        behind = int(self._ts[self._ledger.sent - 1]) - STEP * DAY_MS
        if behind < self._ledger.events[int(self._ledger.of(story.version)[0])].ts:
            return

        async def seen() -> bool:
            status, told = await self._worker.get(page)
            return story.alarm is not None or (status == 200 and told["ts"] >= behind)

        await self._worker.until(seen, DETECT_S, "show its detectors what it has answered")

    async def _live(self, there: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """Waits until the worker has it so. Returns what it tells of the model."""
        found: dict[str, Any] = {}

        async def is_there() -> bool:
            nonlocal found
            status, told = await self._worker.get("/models")
            found = told["models"].get(NAME, {}) if status == 200 else {}
            return there(found)

        await self._worker.until(is_there, RESPOND_S, what)
        return found

    def _pace_s(self) -> float:
        """Seconds that a day has taken up to now."""
        ledger = self._ledger
        days = (int(self._ts[ledger.sent - 1]) - int(self._ts[0])) / DAY_MS
        return ledger.sent / max(ledger.rate(ledger.sent), 1e-9) / days

    def _say(self, text: str) -> None:
        day = (int(self._ts[max(self._ledger.sent - 1, 0)]) - int(self._ts[0])) // DAY_MS
        self._screen.line(f"day {day}: {text}")
