"""feedback -> the answers that it is about -> scores."""

from __future__ import annotations

import asyncio
import math
import time

from agents.outcomes import Led, Teller
from agents.plan import FUTURE_MS
from core.errors import FeedbackError, RecordError, TimeError
from core.events import Feedback
from core.topics import FEEDBACK, SCORES
from engine.agent import Stream, agent
from engine.batch import Batch, Slice
from engine.dead_letters import dead_letter
from engine.engine import Engine
from engine.late import outlived_record
from models.feedback import CORRECTION, LABEL
from models.joining import Fate, Step, tell
from models.remembered import Remembered, Told
from tables.predicted import begin_of, predicted


@agent(FEEDBACK, outputs=[SCORES])
async def judge(stream: Stream[Feedback]) -> None:
    """Joins labels, corrections and signals to the answers that they are about."""
    joiner = Joiner(stream.engine)
    async for batch in stream:
        await joiner.join(batch)


class Joiner:
    """Keeps what was said of each event, and tells detectors and the comparison what it means."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._teller = Teller(engine, FEEDBACK.name)

    async def join(self, batch: Batch[Feedback]) -> None:
        """What it leads to is staged when it returns; what can't be said of an answer is a dead letter."""
        horizons = self._horizons()
        for s in batch.slices:
            if not s.stale:
                self._join(s, horizons)
            await asyncio.sleep(0)  # ten microseconds a record: let others in between

    def _join(self, s: Slice[Feedback], horizons: dict[str | None, int]) -> None:
        shard = predicted.here(s)
        keys = [begin_of(one.session.encode()) + one.event_id.encode() for one in s.events]
        now = predicted.read(shard, keys)
        after: dict[bytes, Remembered] = {}
        led: list[Led] = []
        future = time.time() * 1e3 + FUTURE_MS
        for at, (key, one) in enumerate(zip(keys, s.events, strict=True)):
            record = s.records[at]
            try:
                _check(one, future)
                told = Told(one.type, one.id, one.ts, record.offset, one.label, one.score, one.model)
                step: Step = tell(now.get(key), told, shard.known, horizons.get(one.model))
            except RecordError as error:
                predicted.fates[Fate.REFUSED] += 1
                s.dropped.append((record.offset, dead_letter(s, record, error)))
                continue
            predicted.fates.update(step.fates)
            for refused in step.refused:
                s.dropped.append((record.offset, outlived_record(s, record, one.ts, refused.end)))
            if step.memory is not None:
                now[key] = after[key] = step.memory
            if step.judged:
                led.append(Led(at, step.judged))
        predicted.write(shard, s, after)
        self._teller.tell(s, led)

    def _horizons(self) -> dict[str | None, int]:
        """Model -> ms that feedback about it may wait for an answer: the longest of its versions here; None -> of
        all."""
        found: dict[str | None, int] = {}
        for version in self._engine.models.versions():
            if (awaited := version.manifest.feedback) is not None:
                ms = math.ceil(1e3 * awaited.horizon)
                for name in (None, version.manifest.name):
                    found[name] = max(ms, found.get(name, 0))
        return found


def _check(one: Feedback, future: float) -> None:
    if one.ts > future:
        raise TimeError(one.ts)
    if one.type in (LABEL, CORRECTION) and one.label is None and one.score is None:
        raise FeedbackError(f"a {one.type} says what was true: send a label, or of a regressor's answer a score")
