"""Answers whose versions await feedback -> predicted, where labels find them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

from agents.outcomes import Led, Teller
from agents.plan import Group, Plan
from agents.waiting import give_back
from core.events import Observation
from core.topics import OBSERVATIONS
from engine.batch import Slice
from engine.engine import Engine
from models.joining import answer
from models.remembered import Answer, Asked, Remembered, packed
from models.scores import Scores
from models.version import LiveVersion
from tables.predicted import PredictedShard, begin_of, predicted


class _Given(NamedTuple):
    """An answer, on its way into the table."""

    at: int
    """The place of its event in the slice."""
    key: bytes
    answer: Answer


class Remembering:
    """Costs nothing where no version asks for it."""

    def __init__(self, engine: Engine) -> None:
        self._teller = Teller(engine, OBSERVATIONS.name)
        self._asked: WeakKeyDictionary[LiveVersion, dict[str, tuple[str, Asked]]] = WeakKeyDictionary()

    def remember(self, plan: Plan) -> None:
        """Keeps what a batch was answered, with the state of its events. Feedback that was there before is joined."""
        for group, scores in plan.scored:
            if group.version.manifest.feedback is None:
                continue
            reference, asked = self._of(group)
            kept = packed(scores.matrix)
            for s, at in plan.slices:
                if s.stale:
                    continue
                shard = predicted.here(s)
                shard.know(reference, asked)
                self._put(s, shard, list(_given(plan, group, scores, kept, s, at, reference)), asked)

    def _of(self, group: Group) -> tuple[str, Asked]:
        roles = self._asked.setdefault(group.version, {})
        if group.role not in roles:
            asked = Asked.of(group.version.manifest, group.role)
            roles[group.role] = asked.reference, asked
        return roles[group.role]

    def _put(self, s: Slice[Observation], shard: PredictedShard, given: list[_Given], asked: Asked) -> None:
        if not given:
            return
        before = predicted.read(shard, [one.key for one in given])
        after: dict[bytes, Remembered] = {}
        if not before and len({one.key for one in given}) == len(given):  # as nearly always
            after = {one.key: Remembered(one.answer.ts + asked.horizon, (one.answer,)) for one in given}
            predicted.write(shard, s, after)
            return
        led: list[Led] = []
        for at, key, said in given:
            step = answer(after.get(key) or before.get(key), said, shard.known)
            predicted.fates.update(step.fates)
            if step.memory is not None:
                after[key] = step.memory
            if step.judged:
                led.append(Led(at, step.judged))
            for one in step.refused:
                give_back(s, s.events[at], one)
        predicted.write(shard, s, after)
        self._teller.tell(s, led)


def _given(
    plan: Plan,
    group: Group,
    scores: Scores,
    kept: list[tuple[bytes, bytes]],
    s: Slice[Observation],
    at: int,
    reference: str,
) -> Iterator[_Given]:
    """The answers of one version to the events of a slice, without those that are of no use."""
    events, records, partition = s.events, s.records, s.partition
    end = at + len(events)
    first, last = (at, end) if group.places is None else (bisect_left(group.places, bound) for bound in (at, end))
    places = range(at, end) if group.places is None else group.places[first:last]
    before = begin_of(b"")
    session = ""
    for place, (said, whose) in zip(places, kept[first:last], strict=True):
        if place in plan.broken:
            continue
        event = events[place - at]
        if event.session != session:
            session, before = event.session, begin_of(event.session.encode())
        key = before + event.id.encode()
        yield _Given(place - at, key, Answer(reference, event.ts, partition, records[place - at].offset, said, whose))
