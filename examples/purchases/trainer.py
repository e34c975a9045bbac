"""Answers requests on `retrain`: trains repeat-purchase on the stream as it is by then, and has the result tried.

    HOMUNCULUS_BROKER=kafka://... HOMUNCULUS_MODEL_STORE=... python -m examples.purchases.trainer

It knows what the worker's topics hold, and nothing else: features are recomputed from `observations`, by the fold that
the worker computes them with, answers are those of `feedback`. The newest month with answers is kept back: the better
of two kinds of classifier is the one that does better there, and if that does no better than the version that drifts,
nothing is published. What is published is asked for as a canary with limits: the worker promotes it, or sends it back.
Settings are the worker's, from the environment.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from cli.reach import reach
from cli.reading import newest, partitions_of, to_the_end
from cli.requesting import request
from core.errors import HomunculusError, ModelError, RequestRefusedError
from core.events import Action, Feedback, Observation, Retrain
from core.settings import Settings
from core.topics import DEPLOYMENTS, FEEDBACK, RETRAIN
from engine.connection import Connection
from engine.feed import Feed
from examples.purchases.data import DAY_MS
from examples.purchases.features import matrix
from examples.purchases.labels import HORIZON_MS, RETURNS, auc
from examples.purchases.scoring import scores
from examples.purchases.train import NAME, Floats32, Period, candidates, made
from models.folder import ModelFolder
from models.store import ModelStore

CHECK_MS: Final = 30 * DAY_MS
"""Kept back to choose and to prove with."""
FEWEST: Final = 500
"""Purchases, to learn from and to prove with."""
SHARE: Final = 0.5
"""Of the customers, whom the candidate answers while it is tried."""
LIMITS: Final[Mapping[str, float]] = {"min_events": 500, "max_error": 0.0, "min_agreement": 0.7}
AUTHOR: Final = "examples/purchases/trainer"


class TrainingError(HomunculusError):
    """Nothing that could be published came of a request. Says why."""


@dataclass(frozen=True, slots=True)
class Known:
    """Purchases with their answers, by time."""

    x: Floats32
    """(n, features): as the models see them."""
    returned: Any
    """(n,) bool."""
    ts: Any
    """(n,) int64, ms since epoch."""

    def between(self, start: int, end: int) -> Period:
        """Those from start on, before end."""
        part = (self.ts >= start) & (self.ts < end)
        return Period(self.x[part], self.returned[part])


@dataclass(frozen=True, slots=True)
class Candidate:
    """What has come of a request."""

    folder: ModelFolder
    told: str
    """How it was made and proved, for people."""


def known(events: Sequence[Observation], feedback: Sequence[Feedback], until: int) -> Known:
    """What can be learnt from at that time: purchases older than 60 days with a label, on the features that they had.

    events: all purchases, each customer's in their order; feedback: a label to each, in any order. The newest label of
    a purchase counts.
    """
    events = sorted(events, key=lambda event: event.ts)  # stable: within a day the stream's order
    newest: dict[str, Feedback] = {}
    for one in feedback:
        if one.label is not None and (one.event_id not in newest or one.ts >= newest[one.event_id].ts):
            newest[one.event_id] = one
    x = matrix(events)
    # What is known before may be of one kind: who returns is known at once.
    places = [p for p, event in enumerate(events) if event.ts <= until - HORIZON_MS and event.id in newest]
    returned = np.array([newest[events[p].id].label == RETURNS for p in places], np.bool_)
    return Known(x[places], returned, np.array([events[p].ts for p in places], np.int64))


def trained(asked: Retrain, data: Known, store: ModelStore) -> Candidate:
    """Trains on what is known, proves and publishes it under the next number. Blocking, and for seconds.

    Raises TrainingError where there is too little, or nothing better than the version that drifts; ModelError.
    """
    if not len(data.ts):
        raise TrainingError(f"{asked.id}: no purchase has its answer yet")
    end = int(data.ts[-1]) + 1
    learn, check = data.between(0, end - CHECK_MS), data.between(end - CHECK_MS, end)
    if min(len(learn.x), len(check.x)) < FEWEST:
        raise TrainingError(f"{asked.id}: {len(learn.x):,} purchases to learn from and {len(check.x):,} to prove with")
    models = [make().fit(learn.x, learn.returned) for make in candidates().values()]
    quality = [auc(check.returned, model.predict_proba(check.x)[:, 1]) for model in models]
    best = int(np.argmax(quality))
    drifted = auc(check.returned, scores(store.fetch(asked.model, asked.version), check.x))
    if not quality[best] > drifted:
        raise TrainingError(
            f"{asked.id}: AUC {quality[best]:.3f} on the newest {len(check.x):,} purchases with an answer is no better "
            f"than the {drifted:.3f} of version {asked.version}"
        )
    version = str(1 + max(int(each) for each in store.versions(NAME) if each.isdecimal()))
    folder = made(models[best], version, check, f"{len(learn.x):,} purchases; asked for by {asked.id}", store)
    return Candidate(
        folder,
        f"learnt from {len(learn.x):,} purchases; AUC {quality[best]:.3f} on {len(check.x):,} later ones that it has "
        f"not seen, where version {asked.version} has {drifted:.3f}",
    )


class Trainer:
    """Follows `retrain`, one request after the other."""

    def __init__(self, connection: Connection, store: ModelStore) -> None:
        self._connection = connection
        self._store = store

    async def run(self) -> None:
        """For ever."""
        await Feed(self._connection, RETRAIN, self._asked).run()

    async def _asked(self, model: str, asked: Retrain | None) -> None:
        if asked is None or asked.model != NAME or await asyncio.to_thread(self._answered, asked):
            return
        say(f"{asked.id}: {asked.reason}")
        try:
            data = await self._known(asked)
            candidate = await asyncio.to_thread(trained, asked, data, self._store)
            say(f"{candidate.folder.identity}: {candidate.told}")
            await self._have_tried(candidate)
        except (TrainingError, ModelError, RequestRefusedError) as error:
            say(str(error))

    def _answered(self, asked: Retrain) -> bool:
        """Whether a version was made for this request: whoever starts again reads old ones again."""
        made_by = [self._store.manifest(NAME, version).made_by or "" for version in self._store.versions(NAME)]
        return any(told.endswith(asked.id) for told in made_by)

    async def _known(self, asked: Retrain) -> Known:
        events = await self._read(asked.sources, Observation)
        feedback = await self._read([self._connection.settings.topic_prefix + FEEDBACK.name], Feedback)
        say(f"read {len(events):,} purchases and {len(feedback):,} answers")
        return await asyncio.to_thread(known, events, feedback, asked.until)

    async def _read(self, topics: Sequence[str], kind: type[Any]) -> list[Any]:
        """All that stands there by now; of one partition in order."""
        connection = self._connection
        decode = msgspec.json.Decoder(kind).decode
        found: list[Any] = []
        starts = dict.fromkeys(await partitions_of(connection, *topics), 0)
        async with AIOKafkaConsumer(**connection.options, isolation_level=connection.isolation) as consumer:
            async for _, records in to_the_end(connection, consumer, starts):
                for record in records:
                    try:
                        found.append(decode(record.value))
                    except msgspec.MsgspecError:
                        continue  # the worker has it among its dead letters
        return found

    async def _have_tried(self, candidate: Candidate) -> None:
        """Asks for it as a canary, based on what is deployed: whatever somebody asks for meanwhile comes first."""
        deployed = (await newest(self._connection, DEPLOYMENTS)).get(NAME)
        action = Action(
            action="canary",
            version=candidate.folder.manifest.version,
            share=SHARE,
            limits=dict(LIMITS),
            based_on=deployed.revision if deployed is not None else None,
            reason=candidate.told,
            author=AUTHOR,
        )
        report = await request(self._connection, NAME, action)
        say(*report.lines)


def say(*lines: str) -> None:
    """To whoever watches."""
    print(*lines, sep="\n", flush=True)


async def _run(settings: Settings) -> None:
    store = await asyncio.to_thread(ModelStore, settings.model_store)
    await Trainer(await reach(settings), store).run()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m examples.purchases.trainer", description=__doc__.splitlines()[0])
    parser.parse_args(arguments)
    try:
        asyncio.run(_run(Settings.read()))
    except (HomunculusError, KafkaError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
