"""observations -> sessions -> model -> predictions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from itertools import chain, compress, repeat
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from core.errors import NoModelError, RecordError, ScoreError, TimeError, UnknownModelError
from core.events import Observation, Prediction
from core.topics import OBSERVATIONS, PREDICTIONS
from engine.agent import Stream, agent
from engine.batch import Batch, Slice
from engine.dead_letters import dead_letter
from engine.engine import Engine
from engine.tracing import traced
from models.engine import Array
from models.live import LiveModels
from models.rows import Rows, numbers
from models.scores import Scores
from models.swap import LiveVersion
from tables.sessions import sessions

Floats = NDArray[np.float64]

FUTURE_MS = 86_400_000
"""How far an event may be ahead of the clock: one of the year 9999 would make every session's silence endless."""
WAIT_S = 5.0
"""Seconds between looks at whether the batch that waits for a model still is ours."""


@agent(OBSERVATIONS)
async def score(stream: Stream[Observation]) -> None:
    """Scores every observation with the live model of its session."""
    scorer = Scorer(stream.engine)
    async for batch in stream:
        await scorer.score(batch)


class Scorer:
    """Advances the sessions of a batch, asks the models, stages the predictions."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._models: LiveModels = engine.models
        self._dead_letter = engine.settings.without_model == "dead-letter"
        self._fields: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[str, ...]] = {}
        self._rows: dict[tuple[str, tuple[str, ...], tuple[str, ...]], Rows] = {}
        self._encode = msgspec.json.Encoder().encode

    async def score(self, batch: Batch[Observation]) -> None:
        """Predictions are staged when it returns; records that can't be scored are dead letters."""
        with ExitStack() as held:
            versions = await self._versions(batch, held)
            batch.lap("wait")
            plan = _Plan(self, [s for s in batch.slices if not s.stale], versions)
            plan.fold()
            batch.lap("fold")
            await plan.predict()
            batch.lap("model")
            for s, at in plan.slices:
                self._stage(plan, s, at)
            batch.lap("encode")

    async def _versions(self, batch: Batch[Observation], held: ExitStack) -> dict[str | None, LiveVersion]:
        """The version that answers for each model named in the batch, held until the batch is through."""
        versions: dict[str | None, LiveVersion] = {}
        for name in {event.model for event in batch.events}:
            while name not in versions:
                try:
                    versions[name] = held.enter_context(self._models.using(name))
                except UnknownModelError as error:
                    drop_model(batch, name, error)
                    break
                except NoModelError as error:
                    if self._dead_letter:
                        drop_model(batch, name, error)
                        break
                    await self._until_live(name)
                    if batch.stale:
                        break
        return versions

    async def _until_live(self, name: str | None) -> None:
        try:
            await self._models.until_live(name, WAIT_S)
        except NoModelError:
            return  # asked again, as long as the batch is ours

    def fields(self, versions: Iterable[LiveVersion]) -> tuple[str, ...]:
        """The raw fields that sessions and these versions want as numbers: those of sessions first, each once."""
        distinct = {version.identity: version.manifest for version in versions}
        key = (sessions.fields, tuple(distinct))
        if key not in self._fields:
            theirs = chain.from_iterable(map(Rows.numeric_fields, distinct.values()))
            self._fields[key] = tuple(dict.fromkeys((*sessions.fields, *theirs)))
        return self._fields[key]

    def rows(self, version: LiveVersion, fields: tuple[str, ...], features: tuple[str, ...]) -> Rows:
        """How a version's inputs are filled from these columns."""
        key = (version.identity, fields, features)
        if key not in self._rows:
            self._rows[key] = Rows(version.manifest, fields, features)
        return self._rows[key]

    def _stage(self, plan: _Plan, s: Slice[Observation], at: int) -> None:
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
                    "active",
                    decision,
                    late,
                )
            )
            for event, source, model, version, label, scores, confidence, low, decision, late in zip(
                s.events, sources, *answers, strict=True
            )
        ]
        s.emit(PREDICTIONS, s.keys, values, traced(sources, s.records, s.parents))

    def _drop_broken(self, plan: _Plan, s: Slice[Observation], at: int) -> None:
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


Answers = list[list[Any]]
"""A column each, in the order of events: model, version, label, scores, confidence, low confidence, decision, out of
order. Columns, because a tuple an event would be a tenth of a microsecond more."""
ANSWERS = 8


@cache
def scores_type(labels: tuple[str, ...]) -> Callable[..., dict[str, float]]:
    """A struct with a field a label: a quarter of a dict's price, and the same JSON."""
    fields = [(f"label_{i}", float, msgspec.field(name=label)) for i, label in enumerate(labels)]
    return cast(Callable[..., dict[str, float]], msgspec.defstruct("Scores", fields, gc=False))


class _Plan:
    """One batch on its way: columns for all its events, split by model only where models differ."""

    def __init__(
        self, scorer: Scorer, slices: list[Slice[Observation]], versions: dict[str | None, LiveVersion]
    ) -> None:
        self._scorer = scorer
        self._versions = versions
        self._batch = Batch(slices)
        self._fields = scorer.fields(versions.values())
        self.slices: list[tuple[Slice[Observation], int]] = []
        """Each slice and the place of its first event."""
        self.answers: Answers = []
        self.broken: dict[int, ScoreError] = {}
        """Place of an event -> why its model gave it no usable score."""

    def fold(self) -> None:
        """Checks every event against its model's manifest, then advances the sessions of those that pass."""
        features = sessions.features
        batch = self._batch.events
        events = [event.features for event in batch]
        errors: dict[int, RecordError] = {}
        found = numbers(events, self._fields, errors)
        ts = np.array([event.ts for event in batch], np.float64)
        for i in np.flatnonzero(ts > time.time() * 1e3 + FUTURE_MS).tolist():
            errors[i] = TimeError(batch[i].ts)
        for version, places in self._groups():
            rows = self._scorer.rows(version, self._fields, features)
            if places is None:
                rows.check(events, found, errors)
            else:
                theirs: dict[int, RecordError] = {}
                rows.check([events[i] for i in places], found[places], theirs)
                errors.update({places[i]: error for i, error in theirs.items()})
        if errors:
            good = np.array([i not in errors for i in range(len(events))], np.bool_)
            drop_places(self._batch, errors)
            found, ts = found[good], ts[good]
        self._found, at = found, 0
        slices = [s for s in self._batch.slices if s.events]
        for s in slices:
            self.slices.append((s, at))
            at += len(s.events)
        folded = sessions.fold(slices, ts, found[:, : len(sessions.fields)])
        self._features = np.concatenate([f.features for f in folded]) if folded else np.empty((0, len(features)))
        self._late = [late for f in folded for late in f.out_of_order.tolist()]

    async def predict(self) -> None:
        """Asks each version for its events' scores."""
        events = [event.features for event in self._batch.events]
        self.answers = [[None] * len(events) for _ in range(ANSWERS)]
        asked: list[tuple[LiveVersion, list[int] | None, dict[str, Array]]] = []
        for version, places in self._groups():
            rows = self._scorer.rows(version, self._fields, sessions.features)
            if places is None:
                asked.append((version, places, rows.build(events, self._found, self._features)))
            else:
                theirs = [events[i] for i in places]
                asked.append((version, places, rows.build(theirs, self._found[places], self._features[places])))
        answers = [version.predict(inputs) for version, _, inputs in asked]
        scored = [await answers[0]] if len(answers) == 1 else await asyncio.gather(*answers)  # a task is 7 us
        for (version, places, _), scores in zip(asked, scored, strict=True):
            self._take_answers(version, range(len(events)) if places is None else places, scores)

    def _groups(self) -> list[tuple[LiveVersion, list[int] | None]]:
        """The versions of the batch and the places of their events; None: all of them."""
        versions = self._versions
        if len(versions) == 1:
            return [(version, None) for version in versions.values()]
        places: dict[str | None, list[int]] = {}
        for i, event in enumerate(self._batch.events):
            places.setdefault(event.model, []).append(i)
        return [(versions[name], where) for name, where in places.items()]

    def _take_answers(self, version: LiveVersion, places: Sequence[int], scores: Scores) -> None:
        n = len(scores)
        answers: Answers = [
            [version.manifest.name] * n,
            [version.version] * n,
            list(map(scores.labels.__getitem__, scores.best.tolist())),
            list(map(scores_type(scores.labels), *scores.matrix.T.tolist())),
            [None] * n if scores.confidence is None else scores.confidence.tolist(),
            scores.low_confidence.tolist(),
            [None] * n if scores.decision is None else scores.decision.tolist(),
            self._late if isinstance(places, range) else [self._late[place] for place in places],
        ]
        if isinstance(places, range):
            self.answers = answers
        else:
            for column, theirs in zip(self.answers, answers, strict=True):
                for place, value in zip(places, theirs, strict=True):
                    column[place] = value
        for i in scores.broken.tolist():
            self.broken[places[i]] = ScoreError(version.manifest.identity)


def drop_model(batch: Batch[Observation], name: str | None, error: RecordError) -> None:
    """Dead-letters the events that ask for a model."""
    drop_places(batch, {i: error for i, event in enumerate(batch.events) if event.model == name})


def drop_places(batch: Batch[Observation], errors: Mapping[int, RecordError]) -> None:
    """Dead-letters events by their place in the batch."""
    at = 0
    for s in batch.slices:
        n = len(s.events)
        bad = [i for i in range(n) if at + i in errors]
        for i in bad:
            s.dropped.append((s.records[i].offset, dead_letter(s, s.records[i], errors[at + i])))
        if bad:
            s.events = [event for i, event in enumerate(s.events) if at + i not in errors]
            s.records = [record for i, record in enumerate(s.records) if at + i not in errors]
        at += n
