"""Canaries that are promoted or rolled back by themselves, by the limits that their deployments declare.

Every worker tells in model-status what it counts of a canary. The worker that judges the model's requests adds up what
all of them tell; once the limits say so, it asks for the promotion or the rollback as a person would, on `control`,
based on the revision that it has seen: whatever a person has asked for meanwhile comes first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

import msgspec
from aiokafka.errors import KafkaError

from core.events import Action, Alert, Deployment, ModelStatus
from core.topics import CONTROL, MODEL_STATUS
from engine.admission import REFUSED, in_words
from engine.engine import Engine
from engine.feed import Feed
from engine.publisher import Publisher, partition_of
from models.comparison import compare
from models.limits import Figures, Verdict, judged
from models.status import read

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
AUTHOR: Final = "limits"
"""Who asks."""


class Trials:
    """Those of the models that this worker judges."""

    def __init__(self, engine: Engine, publisher: Publisher) -> None:
        self._engine = engine
        self._publisher = publisher
        self._told: dict[str, ModelStatus] = {}
        """Worker -> its newest status."""
        self._asked: dict[str, int] = {}
        """Model -> the revision that something was asked for."""
        self._feed = Feed(engine.connection, MODEL_STATUS, self._on_status)

    async def run(self) -> None:
        """Looks for ever, where the broker lets us: READ on model-status and WRITE on control are no worker's need."""
        try:
            await self._run()
        except REFUSED as error:
            log.warning("No canary is ended by its limits here: %s", in_words(error))

    async def _run(self) -> None:
        reading = asyncio.create_task(self._feed.run())
        try:
            while not reading.done():
                await asyncio.sleep(LOOK_S)
                for model in self._engine.models.on_trial:
                    await self._look(model)
            await reading
        finally:
            reading.cancel()

    async def _on_status(self, worker: str, status: ModelStatus | None) -> None:
        if status is None:
            self._told.pop(worker, None)
        else:
            self._told[worker] = status

    async def _look(self, model: str) -> None:
        deployment = self._engine.models.wanted(model)
        if deployment is None or deployment.canary is None or not deployment.limits or not self._judges(model):
            return
        if self._asked.get(model) == deployment.revision:
            return
        figures = told_of_canary(deployment, self._told)
        judgement = judged(deployment.limits, figures)
        if judgement is None or (deployment.frozen and judgement.verdict is Verdict.PROMOTE):
            return
        action = Action(
            action=judgement.verdict.value,
            version=deployment.canary.version,
            based_on=deployment.revision,
            reason=judgement.why,
            author=AUTHOR,
            figures=msgspec.to_builtins(figures),
        )
        try:
            await self._publisher.publish(CONTROL, model, action)
        except REFUSED:
            raise
        except KafkaError as error:
            log.warning("The %s of %s could not be asked for: %r", judgement.verdict, model, error)
            return
        self._asked[model] = deployment.revision
        log.info("%s@%s: %s, %s", model, deployment.canary.version, judgement.verdict, judgement.why)

    def _judges(self, model: str) -> bool:
        task = self._engine.tasks.get(partition_of(model.encode(), self._engine.settings.partitions))
        return task is not None and task.open


def alert_of_end(source: str, action: Action, trial: Deployment, ended: Deployment) -> Alert:
    """The one alert that a canary was promoted or rolled back by its limits.

    trial: the deployment that they ended, with the canary; ended: the one that followed.
    """
    assert trial.canary is not None
    promoted = action.action == "promote"
    done, kind = ("promoted", "canary_promoted") if promoted else ("rolled back", "canary_rolled_back")
    return Alert(
        id=f"{source}/{kind}/{trial.model}/opened",
        kind=kind,
        severity="info" if promoted else "warning",
        state="opened",
        subject=trial.model,
        ts=ended.since,
        title=f"{trial.model}@{trial.canary.version} is {done}: {action.reason}",
        evidence={
            "request": source,
            "version": trial.canary.version,
            "active": ended.active,
            "share": trial.canary.share,
            "revision": ended.revision,
            "limits": trial.limits,
            "figures": action.figures,
        },
    )


def told_of_canary(deployment: Deployment, statuses: Mapping[str, ModelStatus]) -> Figures:
    """What workers at this revision tell of its canary, added up. What is no worker's own form is left out: others may
    write to the topic.

    statuses: by worker.
    """
    assert deployment.canary is not None
    told = {
        worker: found
        for worker, status in statuses.items()
        if (found := read(status.models.get(deployment.model))) is not None and found.revision == deployment.revision
    }
    side = compare(told).canary(deployment.canary.version) if told else None
    return side.figures if side is not None else Figures()
