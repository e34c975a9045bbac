"""A batch of observations on its way through sessions and models, as columns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from core.errors import RecordError, ScoreError, TimeError
from core.events import Observation, Role
from engine.batch import Batch, Slice
from engine.dead_letters import dead_letter
from engine.record import Record
from models.engine import Array
from models.routing import Routing
from models.rows import Rows, numbers, texts
from models.scores import Scores
from models.version import LiveVersion
from models.watched import Watched
from tables.sessions import sessions

FUTURE_MS = 86_400_000
"""How far an event may be ahead of the clock: one of the year 9999 would make every session's silence endless."""


KEPT = 64
"""Combinations of versions whose columns are remembered: a worker meets new ones as long as it runs."""


class Columns:
    """Which columns versions are filled from; worked out once."""

    def __init__(self) -> None:
        self._fields: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[str, ...]] = {}
        self._rows: dict[tuple[str, tuple[str, ...], tuple[str, ...]], Rows] = {}
        self._watched: dict[tuple[str, tuple[str, ...], tuple[str, ...]], Watched] = {}

    def fields(self, versions: Iterable[LiveVersion]) -> tuple[str, ...]:
        """The raw fields that sessions and these versions want as numbers: those of sessions first, each once."""
        distinct = {version.identity: version.manifest for version in versions}
        key = (sessions.fields, tuple(distinct))
        if key not in self._fields:
            _make_room(self._fields)
            theirs = chain.from_iterable(map(Rows.numeric_fields, distinct.values()))
            self._fields[key] = tuple(dict.fromkeys((*sessions.fields, *theirs)))
        return self._fields[key]

    def rows(self, version: LiveVersion, fields: tuple[str, ...], features: tuple[str, ...]) -> Rows:
        """How a version's inputs are filled from these columns."""
        key = (version.identity, fields, features)
        if key not in self._rows:
            _make_room(self._rows)
            self._rows[key] = Rows(version.manifest, fields, features)
        return self._rows[key]

    def watched(self, version: LiveVersion, fields: tuple[str, ...], features: tuple[str, ...]) -> Watched:
        """How what detectors watch of a version is taken from them."""
        key = (version.identity, fields, features)
        if key not in self._watched:
            _make_room(self._watched)
            self._watched[key] = Watched(version.manifest, fields, features)
        return self._watched[key]


def _make_room(kept: dict[Any, Any]) -> None:
    if len(kept) >= KEPT:
        kept.clear()


Floats = NDArray[np.float64]
Answers = list[list[Any]]
"""A column each, in the order of events: model, version, label, scores, confidence, low confidence, decision, out of
order, role. Columns, because a tuple an event would be a tenth of a microsecond more."""
ANSWERS = 9


@cache
def scores_type(labels: tuple[str, ...]) -> Callable[..., dict[str, float]]:
    """A struct with a field a label: a quarter of a dict's price, and the same JSON. Labels that no struct takes for a
    field's name make dicts."""
    if any(char in '"\\' or not char.isprintable() for label in labels for char in label):
        return lambda *scores: dict(zip(labels, scores, strict=True))
    fields = [(f"label_{i}", float, msgspec.field(name=label)) for i, label in enumerate(labels)]
    return cast(Callable[..., dict[str, float]], msgspec.defstruct("Scores", fields, gc=False))


class Group(NamedTuple):
    """Events of a batch that one version answers."""

    routing: Routing
    """Which the version is of."""
    version: LiveVersion
    role: Role
    places: list[int] | None
    """None: all of them."""


class Part(NamedTuple):
    """A slice's events, and where they stand in the columns."""

    partition: int
    at: int
    events: list[Observation]
    records: list[Record]
    sources: list[str]


class Plan:
    """One batch on its way: columns for all its events, split by version only where versions differ."""

    def __init__(
        self, columns: Columns, slices: list[Slice[Observation]], routings: Mapping[str | None, Routing]
    ) -> None:
        """routings: by the name that events give their model."""
        self._columns = columns
        self.routings = routings
        self._batch = Batch(slices)
        self._fields = columns.fields(version for routing in routings.values() for version in routing)
        self._canary = self._sides()
        self.slices: list[tuple[Slice[Observation], int]] = []
        """Each slice and the place of its first event."""
        self.answers: Answers = []
        self.broken: dict[int, ScoreError] = {}
        """Place of an event -> why its model gave it no usable score."""
        self.scored: list[tuple[Group, Scores]] = []
        self.events: list[Observation] = []
        """Those that are still good once they are folded, in the order of the columns."""
        self.ts: Floats = np.empty(0)
        """(events,): their times, ms since epoch."""

    def _sides(self) -> NDArray[np.bool_]:
        """(events,): whether the canary of its model answers an event."""
        sides = np.zeros(len(self._batch), np.bool_)
        if any(routing.canary is not None for routing in self.routings.values()):
            keys = [key for s in self._batch.slices for key in s.keys]
            models = [event.model for event in self._batch.events]
            for name, routing in self.routings.items():
                theirs = [i for i, model in enumerate(models) if model == name]
                sides[theirs] = routing.canaries([keys[i] for i in theirs])
        return sides

    def fold(self) -> None:
        """Checks every event against its model's manifest, then advances the sessions of those that pass."""
        features = sessions.features
        batch = self._batch.events
        events = [event.features for event in batch]
        errors: dict[int, RecordError] = {}
        found = numbers(events, self._fields)
        texts(events, found, self._fields, list(range(len(sessions.fields))), errors)
        ts = np.array([event.ts for event in batch], np.float64)
        for i in np.flatnonzero(ts > time.time() * 1e3 + FUTURE_MS).tolist():
            errors[i] = TimeError(batch[i].ts)
        for routing, version, role, places in self.groups():
            rows = self._columns.rows(version, self._fields, features)
            if places is None:
                rows.check(events, found, errors)
            else:
                theirs: dict[int, RecordError] = {}
                rows.check([events[i] for i in places], found[places], theirs)
                if theirs and role == "canary":
                    refused = [places[i] for i in theirs if places[i] not in errors]
                    version.meter.broken += self._taken_by_active(routing, events, found, refused)
                errors.update({places[i]: error for i, error in theirs.items()})
        if errors:
            good = np.array([i not in errors for i in range(len(events))], np.bool_)
            drop_places(self._batch, errors)
            found, ts, self._canary = found[good], ts[good], self._canary[good]
        self._found, self.ts, self.events, at = found, ts, self._batch.events, 0
        slices = [s for s in self._batch.slices if s.events]
        for s in slices:
            self.slices.append((s, at))
            at += len(s.events)
        folded = sessions.fold(slices, ts, found[:, : len(sessions.fields)])
        self._features = np.concatenate([f.features for f in folded]) if folded else np.empty((0, len(features)))
        self._late = [late for f in folded for late in f.out_of_order.tolist()]

    def _taken_by_active(self, routing: Routing, events: list[Any], found: Floats, places: list[int]) -> int:
        """How many of the events that a canary's manifest refuses would have had an answer without it."""
        assert routing.active is not None
        errors: dict[int, RecordError] = {}
        rows = self._columns.rows(routing.active, self._fields, sessions.features)
        rows.check([events[i] for i in places], found[places], errors)
        return len(places) - len(errors)

    async def predict(self) -> None:
        """Asks each version for its events' scores."""
        self.answers = [[None] * len(self.events) for _ in range(ANSWERS)]
        groups = self.groups()
        answers = [group.version.predict(self.inputs(group.version, group.places)) for group in groups]
        scored = [await answers[0]] if len(answers) == 1 else await asyncio.gather(*answers)  # a task is 7 us
        self.scored = list(zip(groups, scored, strict=True))
        for group, scores in self.scored:
            self._take_answers(group, scores)

    def parts(self) -> list[Part]:
        """Which slice has which events, as of now: before any turned out to have no usable score."""
        return [Part(s.partition, at, s.events, s.records, s.sources) for s, at in self.slices]

    def groups(self) -> list[Group]:
        """Who answers which of the events."""
        routings, canary = self.routings, self._canary
        if len(routings) == 1:
            (routing,) = routings.values()
            if routing.active is not None and routing.canary is None:
                return [Group(routing, routing.active, "active", None)]
        places: dict[tuple[str | None, bool], list[int]] = {}
        for i, (event, on_canary) in enumerate(zip(self._batch.events, canary.tolist(), strict=True)):
            places.setdefault((event.model, on_canary), []).append(i)
        groups = []
        for (name, on_canary), where in places.items():
            routing = routings[name]
            version = routing.canary if on_canary else routing.active
            assert version is not None
            groups.append(Group(routing, version, "canary" if on_canary else "active", where))
        return groups

    def inputs(self, version: LiveVersion, places: list[int] | None) -> dict[str, Array]:
        """What a version is asked of events that meet its manifest."""
        events = [event.features for event in self.events]
        rows = self._columns.rows(version, self._fields, sessions.features)
        if places is None:
            return rows.build(events, self._found, self._features)
        return rows.build([events[i] for i in places], self._found[places], self._features[places])

    def watched(self, version: LiveVersion, places: list[int] | None) -> NDArray[np.float32] | None:
        """(n, d): the features that a version's reference describes, of the same events; None where it has none."""
        if not version.manifest.features:
            return None
        events = [event.features for event in self.events]
        taken = self._columns.watched(version, self._fields, sessions.features)
        if places is None:
            return taken.of(events, self._found, self._features)
        return taken.of([events[i] for i in places], self._found[places], self._features[places])

    def fits(self, version: LiveVersion, places: Sequence[int]) -> list[int]:
        """The events among these that a version can be asked of."""
        events = [self.events[i].features for i in places]
        errors: dict[int, RecordError] = {}
        self._columns.rows(version, self._fields, sessions.features).check(events, self._found[places], errors)
        return [place for i, place in enumerate(places) if i not in errors]

    def _take_answers(self, group: Group, scores: Scores) -> None:
        places = range(len(self.events)) if group.places is None else group.places
        late = self._late if group.places is None else [self._late[place] for place in places]
        answers = [*columns_of(group.version, scores), late, [group.role] * len(scores)]
        if group.places is None:
            self.answers = answers
        else:
            for column, theirs in zip(self.answers, answers, strict=True):
                for place, value in zip(places, theirs, strict=True):
                    column[place] = value
        for i in scores.broken.tolist():
            self.broken[places[i]] = ScoreError(group.version.manifest.identity)


def columns_of(version: LiveVersion, scores: Scores) -> Answers:
    """What a version said: model, version, label, scores, confidence, low confidence, decision."""
    n = len(scores)
    return [
        [version.manifest.name] * n,
        [version.version] * n,
        list(map(scores.labels.__getitem__, scores.best.tolist())),
        list(map(scores_type(scores.labels), *scores.matrix.T.tolist())),
        [None] * n if scores.confidence is None else scores.confidence.tolist(),
        scores.low_confidence.tolist(),
        [None] * n if scores.decision is None else scores.decision.tolist(),
    ]


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
