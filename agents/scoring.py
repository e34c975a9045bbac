"""observations -> sessions -> model -> predictions."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import compress, repeat

import msgspec

from agents.plan import Columns, Plan, drop_places
from agents.remembering import Remembering
from agents.scores import Told
from agents.shadows import Shadows
from core.errors import HeldError, NoModelError, RecordError, UnknownModelError
from core.events import Observation, Prediction
from core.facts import told_of
from core.topics import OBSERVATIONS, PREDICTIONS
from engine.agent import Stream, agent
from engine.batch import Batch, Slice
from engine.dead_letters import dead_letter
from engine.engine import Engine
from engine.tracing import traced
from models.live import LiveModels
from models.routing import Routing
from tables.latest import latest

WAIT_S = 5.0
"""Seconds between looks at whether the batch that waits for a model still is ours."""


@agent(OBSERVATIONS)
async def score(stream: Stream[Observation]) -> None:
    """Scores every observation with the live model of its session."""
    scorer = Scorer(stream.engine)
    async for batch in stream:
        await stream.engine.gate.admit(batch)
        if len(batch):
            await scorer.score(batch)


class Scorer:
    """Advances the sessions of a batch, asks the models, stages the predictions."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._models: LiveModels = engine.models
        self._dead_letter = engine.settings.without_model == "dead-letter"
        self._columns = Columns()
        self._shadows = Shadows(engine)
        self._told = Told(engine.settings.partitions)
        self._remembering = Remembering(engine)
        self._encode = msgspec.json.Encoder().encode
        self._keeps_latest = told_of("prediction", engine.settings.chat_facts)

    async def score(self, batch: Batch[Observation]) -> None:
        """Predictions are staged when it returns; records that can't be scored are dead letters."""
        with ExitStack() as held:
            routings = await self._routings(batch, held)
            batch.lap("wait")
            plan = Plan(self._columns, [s for s in batch.slices if not s.stale], routings)
            plan.fold()
            batch.lap("fold")
            await plan.predict()
            batch.lap("model")
            if any(routing.compares for routing in routings.values()):
                self._shadows.offer(plan)
            self._told.tell(plan)
            self._remembering.remember(plan)
            for s, at in plan.slices:
                self._stage(plan, s, at)
            batch.lap("encode")

    async def _routings(self, batch: Batch[Observation], held: ExitStack) -> dict[str | None, Routing]:
        """Who answers for each model named in the batch, held until the batch is through."""
        routings: dict[str | None, Routing] = {}
        for name in {event.model for event in batch.events}:
            while name not in routings:
                try:
                    routings[name] = held.enter_context(self._models.routed(name))
                except UnknownModelError as error:
                    drop_model(batch, name, error)
                    break
                except NoModelError as error:
                    if self._dead_letter and not isinstance(error, HeldError):
                        drop_model(batch, name, error)
                        break
                    await self._until_live(name)
                    if batch.stale:
                        break
        return routings

    async def _until_live(self, name: str | None) -> None:
        try:
            await self._models.until_live(name, WAIT_S)
        except NoModelError:
            return  # asked again, as long as the batch is ours

    def _stage(self, plan: Plan, s: Slice[Observation], at: int) -> None:
        if plan.broken:
            self._drop_broken(plan, s, at)
        encode, sources, n = self._encode, s.sources, len(s.events)
        answers = [column[at : at + n] for column in plan.answers]
        values = [
            encode(
                Prediction(
                    source,
                    event.id,
                    event.session,
                    event.ts,
                    model,
                    version,
                    label,
                    scores,
                    confidence,
                    low,
                    role,
                    decision,
                    late,
                )
            )
            for event, source, model, version, label, scores, confidence, low, decision, late, role in zip(
                s.events, sources, *answers, strict=True
            )
        ]
        s.emit(PREDICTIONS, s.keys, values, traced(sources, s.records, s.parents))
        if self._keeps_latest:
            latest.keep(s, answers)

    def _drop_broken(self, plan: Plan, s: Slice[Observation], at: int) -> None:
        """Events that the model gave no usable score for are dead letters; their sessions keep them."""
        n = len(s.events)
        good = [place not in plan.broken for place in range(at, at + n)]
        for i in range(n):
            if not good[i]:
                letter = dead_letter(s, s.records[i], plan.broken[at + i])
                s.dropped.append((s.records[i].offset, letter))
        for column in plan.answers:
            column[at : at + n] = [*compress(column[at : at + n], good), *repeat(None, good.count(False))]
        s.events = list(compress(s.events, good))
        s.records = list(compress(s.records, good))


def drop_model(batch: Batch[Observation], name: str | None, error: RecordError) -> None:
    """Dead-letters the events that ask for a model."""
    drop_places(batch, {i: error for i, event in enumerate(batch.events) if event.model == name})
