"""Session features that began later than the sessions, filled from the log: observations are read once more, beside
the work, and folded into columns of their own, which take the others' place where both have come to one offset.

Each partition's owner does its own, one partition after the other, for as long as the deployment asks for it. How far
it is stands among the partition's rows and is committed with them, so whoever owns it next goes on there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import numpy as np
from aiokafka.errors import KafkaError
from pydantic import ValidationError

from agents.plan import FUTURE_MS
from core.errors import (
    CorruptStoreError,
    DataFolderError,
    FatalError,
    RecordError,
    RequestRefusedError,
    RightsError,
    TaskError,
)
from core.events import Backfill, Deployment, Observation
from core.topics import OBSERVATIONS
from engine.admission import REFUSED, in_words
from engine.codec import codec_of
from engine.engine import Engine
from engine.rereading import Rereader
from engine.task import PartitionTask
from models.manifest import Manifest
from models.rows import numbers
from models.status import Filling
from tables.keeping import Fill, SessionShard
from tables.sessions import sessions

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
"""Between two looks for something to do."""
RETRY_S: Final = 5.0
REST: Final = 4.0
"""Seconds of pause for each second of work: it may take a fifth of the worker's thread."""
NEAR: Final = 1000
"""Observations between it and the work, with which it ends: reading waits for so long."""
SETTLED_S: Final = 3.0
"""What the work may take until all that was read is committed; else it is tried again later."""


def filled(deployment: Deployment, manifests: Iterable[Manifest]) -> Deployment:
    """The deployment with the features that its backfill is of. Raises RequestRefusedError where there are none."""
    features = sorted({feature.name for manifest in manifests for feature in manifest.session_features})
    if not features:
        raise RequestRefusedError(f"{deployment.model} asks for no session features: there is nothing to fill")
    assert deployment.backfill is not None
    asked = deployment.backfill.model_copy(update={"features": tuple(features)})
    return deployment.model_copy(update={"backfill": asked})


class Backfills:
    """Those of this worker."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._decode = codec_of(Observation).decode
        self._error: str | None = None
        self._pace = 0.0
        """Observations a second, lately."""

    async def run(self) -> None:
        """Fills what deployments ask for, for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            for task in list(self._engine.tasks.values()):
                for model, asked in self._asked(task):
                    try:
                        await self._fill(task, model, asked)
                        self._error = None
                    except (FatalError, DataFolderError) as error:
                        self._engine.fatal(error)
                    except CorruptStoreError as error:
                        await self._engine.committer.failed(error)
                    except (RightsError, *REFUSED) as error:
                        await self._failed(in_words(error) if isinstance(error, KafkaError) else str(error))
                    except (KafkaError, OSError, TaskError) as error:
                        await self._failed(str(error) or repr(error))

    async def _failed(self, why: str) -> None:
        log.warning("A backfill goes on in %.0f s: %s", RETRY_S, why)
        self._error = why
        await asyncio.sleep(RETRY_S)

    def _asked(self, task: PartitionTask) -> list[tuple[str, Backfill]]:
        """What is asked for of a partition and not done there; what it is at first."""
        shard = _shard(task)
        if shard is None:
            return []
        wanted = {
            request_of(one): (one.model, one.backfill)
            for one in self._engine.models.deployments()
            if one.backfill is not None
        }
        keeping = shard.keeping
        if keeping.fill is not None and keeping.fill.request not in wanted:
            shard.give_up_fill()
            task.changed_beside(1)
        open_ = {request: one for request, one in wanted.items() if keeping.filled.get(one[0]) != request}
        under_way = keeping.fill.request if keeping.fill is not None else None
        return [one for request, one in sorted(open_.items(), key=lambda item: item[0] != under_way)]

    async def _fill(self, task: PartitionTask, model: str, asked: Backfill) -> None:
        shard, request = _shard(task), f"{model}/{asked.revision}"
        if shard is None:
            return
        if not set(asked.features) <= sessions.aggregates.read_from.keys() and not self._all_loaded(model):
            raise TaskError(f"not all versions of {model} are loaded here, which ask for what is to be filled")
        async with Rereader.of(self._engine.connection, OBSERVATIONS, task.partition) as reader:
            fill, place = shard.keeping.fill, f"{reader.source.topic}/{task.partition}/"
            # Of another place: the state was put into other partitions. Before the beginning: retention was quicker.
            if (
                fill is None
                or fill.request != request
                or not fill.source.startswith(place)
                or await reader.begins() > fill.position
            ):
                offset, written = await reader.first(asked.since or 0)
                if _shard(task) is not shard:
                    return
                fill = self._begun(task, shard, model, asked, f"{place}{offset}", written)
                if fill is None:
                    return
            await reader.begin(fill.position, fill.since)
            while await self._go_on(task, shard, reader, model, asked):
                if 0 <= task.finished_to(reader.source.topic) - fill.position <= NEAR:
                    if await self._end(task, shard, reader, model):
                        return
                    await asyncio.sleep(LOOK_S)
                elif task.finished_to(reader.source.topic) < fill.position:
                    await asyncio.sleep(LOOK_S)  # the work has still to come to where it begins

    def _wants(self, model: str, asked: Backfill) -> bool:
        deployment = self._engine.models.wanted(model)
        return deployment is not None and deployment.backfill == asked

    def _all_loaded(self, model: str) -> bool:
        models = self._engine.models
        deployment = models.wanted(model)
        here = {one.version for one in models.versions() if one.manifest.name == model}
        return deployment is not None and set(deployment.versions) <= here

    def _begun(
        self, task: PartitionTask, shard: SessionShard, model: str, asked: Backfill, source: str, written: int
    ) -> Fill | None:
        """None: nothing of it is missing here."""
        request = f"{model}/{asked.revision}"
        if shard.keeping.fill is not None:
            shard.give_up_fill()
        shard.keep(sessions.aggregates)
        first = int(source.rpartition("/")[2])
        late = shard.late(asked.features)
        features = [
            name
            for name, kept in late.items()
            if name in shard.aggregates.read_from and (kept.offset is None or kept.offset > first)
        ]
        if features:
            shard.begin_fill(request, features, source, written)
            log.info("Partition %d: %s is filled from %s on", task.partition, ", ".join(features), source)
        else:
            shard.nothing_to_fill(model, request)
        task.changed_beside(1)
        return shard.keeping.fill

    async def _go_on(
        self, task: PartitionTask, shard: SessionShard, reader: Rereader, model: str, asked: Backfill
    ) -> bool:
        """Folds what is committed by now. Returns whether the partition still is ours, and this still wanted of it."""
        began, count = time.monotonic(), 0
        async for records, end in reader.until(task.committed.get(reader.source.topic, 0), task.written):
            while _shard(task) is shard and not task.staged_room:
                await asyncio.sleep(0.05)
            if _shard(task) is not shard or shard.keeping.fill is None:
                return False
            working = time.monotonic()
            self._fold(task, shard, records, end)
            count += len(records)
            await asyncio.sleep(REST * (time.monotonic() - working))
            if not self._wants(model, asked):
                return False
        if count > NEAR:
            self._pace = count / (time.monotonic() - began)
        return _shard(task) is shard and shard.keeping.fill is not None and self._wants(model, asked)

    async def _end(self, task: PartitionTask, shard: SessionShard, reader: Rereader, model: str) -> bool:
        """Lets nothing more be read until all that was read is committed, folds that, and has it count from there on.
        Returns whether there is nothing more to do."""
        topic = reader.source.topic

        def settled() -> bool:
            return task.unfinished_of(topic) == 0 and task.committed.get(topic, 0) == task.finished_to(topic)

        task.paused.add(topic)
        task.touch()  # a position may have moved without a commit
        began = time.monotonic()
        try:
            while _shard(task) is shard and not settled():
                if time.monotonic() > began + SETTLED_S:
                    return False
                await asyncio.sleep(0.002)
            if _shard(task) is not shard:
                return True
            stop = task.finished_to(topic)
            async for records, end in reader.until(stop, task.written):
                if _shard(task) is not shard or shard.keeping.fill is None:
                    return True
                self._fold(task, shard, records, end)
            if _shard(task) is not shard or shard.keeping.fill is None:
                return True
            if not settled() or not task.finished_to(topic) == stop == shard.keeping.fill.position:
                return False
            shard.end_fill(model)
            task.changed_beside(1)
            log.info(
                "Partition %d: what was filled counts from offset %d on; reading waited for it for %.0f ms",
                task.partition,
                stop,
                1e3 * (time.monotonic() - began),
            )
            return True
        finally:
            task.paused.discard(topic)
            self._engine.wake.set()

    def _fold(self, task: PartitionTask, shard: SessionShard, records: list[Any], end: int) -> None:
        filling, latest = shard.filling, time.time() * 1e3 + FUTURE_MS
        assert filling is not None
        events: list[Observation] = []
        for record in records:
            try:
                event = self._decode(record.value)
            except (msgspec.MsgspecError, ValidationError, RecordError, RecursionError, TypeError, ValueError):
                continue
            if record.key == event.session.encode() and event.ts <= latest:
                events.append(event)
        values = numbers([event.features for event in events], filling.fields)
        values = np.where(np.isinf(values), np.nan, values)  # a text is no number, and was none of the model's of then
        keys, ts = [event.session.encode() for event in events], np.array([float(event.ts) for event in events])
        shard.fill(keys, ts, values, end)
        task.changed_beside(len(records) + 1)

    # -- what is told of it -------------------------------------------------------------------------------------------

    def all(self) -> dict[str, Filling]:
        """How far each model's is."""
        found = {one.model: self.progress(one) for one in self._engine.models.deployments()}
        return {model: filling for model, filling in found.items() if filling is not None}

    def progress(self, deployment: Deployment) -> Filling | None:
        """How far that of a deployment is on this worker; None where it asks for none."""
        asked = deployment.backfill
        if asked is None:
            return None
        request, topic = request_of(deployment), self._engine.topic_name(OBSERVATIONS)
        told, through, shares = Filling(asked.revision, 0), 0, 0.0
        for task in self._engine.tasks.values():
            if (shard := _shard(task)) is None:
                continue
            told.partitions += 1
            fill, since = shard.keeping.fill, None
            if shard.keeping.filled.get(deployment.model) == request:
                told.done += 1
                shares += 1
                since = _since(shard, asked.features)
            elif fill is not None and fill.request == request:
                whole = max(1, task.finished_to(topic) - fill.first)
                through = min(whole, fill.position - fill.first)
                told.left += whole - through
                shares += through / whole
                since = fill.since
            told.since = max(filter(None, (told.since, since)), default=None)
        told.share = round(shares / told.partitions, 3) if told.partitions else 0.0
        if told.left and self._pace:
            told.eta_s = round(told.left / self._pace, 1)
        if told.done < told.partitions:
            told.error = self._error
        return told


def request_of(deployment: Deployment) -> str:
    """How partitions note the backfill of a deployment."""
    assert deployment.backfill is not None
    return f"{deployment.model}/{deployment.backfill.revision}"


def _shard(task: PartitionTask) -> SessionShard | None:
    """A partition's sessions as they are now: others when it has opened anew."""
    shard = task.shards.get(sessions.name) if task.open else None
    return shard if isinstance(shard, SessionShard) else None


def _since(shard: SessionShard, features: Iterable[str]) -> int | None:
    columns = (shard.aggregates.read_from.get(name) for name in features)
    kept = [shard.keeping.columns[names[0]].since for names in columns if names is not None]
    return max((one for one in kept if one), default=None)
