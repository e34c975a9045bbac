"""Versions that are asked for comparison alone: after the others, on a thread of their own, under load not at all."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from agents.plan import Group, Part, Plan, columns_of
from core.errors import FencedError, TaskError
from core.events import Prediction
from core.topics import PREDICTIONS
from engine.aside import Aside
from engine.batch import EARLY, Staged
from engine.engine import Engine
from engine.tracing import traced
from models.manifest import Kind
from models.scores import Scores
from models.version import LiveVersion

log = logging.getLogger(__name__)

WAITING: Final = 16_000
"""Events that may wait to be asked about; beyond them the next are dropped: each is held in memory."""
CLOSE: Final = 0.01
"""How far the values of two regressors may be apart, as a share of the active one's, or as it is below 1."""


class _Question(NamedTuple):
    """Some events of a batch, asked of one more version."""

    plan: Plan
    parts: list[Part]
    asked: LiveVersion
    answered: LiveVersion
    """Whose answers are compared with."""
    credited: LiveVersion
    """Which of both is on trial."""
    places: list[int]
    labels: NDArray[np.intp]
    """(n,): what it said; columns of `names`."""
    names: tuple[str, ...]
    values: NDArray[np.float32]
    """(n,): its largest score, or a regressor's value."""


class Shadows:
    """Those of one worker."""

    def __init__(self, engine: Engine) -> None:
        self._aside = Aside(engine.committer, engine.meters.sent)
        self._topic = engine.topic_name(PREDICTIONS)
        self._encode = msgspec.json.Encoder().encode
        self._waiting: deque[_Question] = deque()
        self._events = 0
        """In all that waits."""
        self._runner: asyncio.Task[None] | None = None
        self._told: set[str] = set()
        """Versions whose failure the log has been told of: their figures count all of them."""

    def offer(self, plan: Plan) -> None:
        """Asks as much of a batch as there is room for. Never waits."""
        for question in _questions(plan):
            if self._events + len(question.places) > WAITING:
                question.credited.compared.dropped += len(question.places)
                continue
            self._events += len(question.places)
            for version in (question.asked, question.credited):
                version.hold()
            self._waiting.append(question)
        if self._waiting and self._runner is None:
            self._runner = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._waiting:
                question = self._waiting.popleft()
                self._events -= len(question.places)
                await self._ask(question)
        finally:
            self._runner = None

    async def _ask(self, question: _Question) -> None:
        asked, credited = question.asked, question.credited
        try:
            places = question.plan.fits(asked, question.places)
            credited.compared.dropped += len(question.places) - len(places)
            if not places:
                return
            inputs = question.plan.inputs(asked, places)
            if asked is credited:
                scores = await asked.predict(inputs, aside=True)
                await self._aside.send(self._outputs(question.parts, asked, places, scores))
            else:
                scores = await asked.compute(inputs, aside=True)
            _compare(question, places, scores)
        except (TaskError, FencedError) as error:
            log.debug("Answers of %s were not published: %r", asked.course.who, error)
        except Exception as error:  # whatever a model raises: it is on trial, and its figures tell
            if asked.identity not in self._told:
                self._told.add(asked.identity)
                log.warning("%s failed on %d events: %r", asked.course.who, len(question.places), error)
        finally:
            for version in (asked, credited):
                version.release()

    def _outputs(self, parts: list[Part], version: LiveVersion, places: list[int], scores: Scores) -> Iterator[Staged]:
        broken = set(scores.broken.tolist())
        rows = {place: i for i, place in enumerate(places) if i not in broken}
        columns = columns_of(version, scores)
        suffix = f"/shadow/{version.manifest.identity}"
        for part in parts:
            kept = [i for i in range(len(part.events)) if part.at + i in rows]
            if not kept:
                continue
            values = []
            for i in kept:
                event, source = part.events[i], part.sources[i]
                model, named, label, scored, sure, low, decision = (c[rows[part.at + i]] for c in columns)
                values.append(
                    self._encode(
                        Prediction(
                            source + suffix,
                            event.id,
                            event.session,
                            event.ts,
                            model,
                            named,
                            label,
                            scored,
                            sure,
                            low,
                            "shadow",
                            decision,
                        )
                    )
                )
            headers = traced([part.sources[i] for i in kept], [part.records[i] for i in kept])
            yield Staged(
                self._topic,
                [part.records[i].key for i in kept],
                values,
                [[*of_one, EARLY] for of_one in headers],
                part.partition,
            )


def _questions(plan: Plan) -> Iterator[_Question]:
    parts = plan.parts()
    for group, scores in plan.scored:
        routing, active = group.routing, group.routing.active
        if group.role == "canary" and routing.paired and active is not None:
            yield _question(plan, parts, group, scores, active, group.version)
        for shadow in routing.shadows if group.role == "active" else ():
            yield _question(plan, parts, group, scores, shadow, shadow)


def _question(
    plan: Plan, parts: list[Part], group: Group, scores: Scores, asked: LiveVersion, credited: LiveVersion
) -> _Question:
    places = list(range(len(scores))) if group.places is None else group.places
    return _Question(
        plan, parts, asked, group.version, credited, places, scores.best, scores.labels, scores.matrix.max(axis=1)
    )


def _compare(question: _Question, places: list[int], scores: Scores) -> None:
    """Counts the events in which both versions agree."""
    where = {place: i for i, place in enumerate(question.places)}
    theirs = [where[place] for place in places]
    if question.answered.manifest.kind is Kind.REGRESSOR:
        said, now = question.values[theirs], scores.matrix[:, 0]
        same = np.abs(said - now) <= CLOSE * np.maximum(1.0, np.abs(said))
    else:
        said_names = np.array(question.names, object)[question.labels[theirs]]
        same = said_names == np.array(scores.labels, object)[scores.best]
    compared = question.credited.compared
    compared.events += len(places)
    compared.agreed += int(np.count_nonzero(same))
