"""scores -> one owner a version -> detectors -> alerts, and what the deployment declares for a drift."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from agents.commands import OURS
from agents.deployments import refusal
from agents.responses import ask, asked, unasked
from core.errors import DecodeError, ModelError, RecordError, UnknownVersionError
from core.events import Alert, Deployment
from core.topics import ALERTS, CONTROL, OBSERVATIONS, SCORES
from engine.agent import Stream, agent
from engine.batch import Slice, working_on
from engine.codec import codec_of
from engine.dead_letters import dead_letter
from engine.engine import Engine
from engine.publisher import partition_of
from engine.rights import WRITE, may
from engine.tracing import output_headers
from models.drift.answers import Answers, Scored, faults
from models.drift.command import Command, obey
from models.drift.condition import Change
from models.drift.monitor import Monitor
from models.drift.ordering import Ordering
from models.drift.outcomes import Outcomes
from models.drift.singles import Singles
from models.drift.spec import Spec
from tables.drift import Reference, Watch, packed, references, watches

log = logging.getLogger(__name__)

REST_S: Final = 0.5
"""Between two looks at new scores: what detectors know of a version, up to some 100 KB, is written whole each time."""
MOST: Final = 10_000
"""Answers looked at in one go, about 7 ms: then the event loop has its turn, however far behind the scores are."""
KEPT: Final = 32
"""Versions whose detectors stay in memory; others are read from the table when they are needed."""
DONE: Final = {"reset": "reset", "acknowledge": "acknowledged", "resolve": "resolved"}
SAID: Final = {
    "reset": "has reset the detectors of",
    "acknowledge": "knows what is wrong with",
    "resolve": "says that it is over with",
}
_encode = codec_of(Alert).encode
_decode = msgspec.msgpack.Decoder(Scored | Outcomes | Command).decode


@agent(SCORES, rest_s=REST_S)
async def watch(stream: Stream[bytes]) -> None:
    """Hands each version's answers to its detectors, in one order, and tells what they find."""
    owner = Owner(stream.engine)
    async for batch in stream:
        for slices in batch.by_partition().values():
            await owner.take(slices)


class Told(NamedTuple):
    """A record, and where it stands."""

    s: Slice[bytes]
    at: int
    record: Scored | Outcomes | Command


class Owner:
    """Of the versions whose key is in this worker's partitions."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._partitions = engine.settings.partitions
        self._topic = engine.topic_name(OBSERVATIONS)
        self._detectors: OrderedDict[tuple[int, str], Detectors] = OrderedDict()

    async def take(self, slices: Sequence[Slice[bytes]]) -> None:
        """All of one partition: state, alerts and responses are staged when it returns. The state is the last slice's:
        they finish together."""
        working_on(slices[-1])
        found: dict[str, list[Told]] = {}
        for s in slices:
            for i, record in enumerate(s.records):
                try:
                    key, told_one = _version_of(record.key), Told(s, i, _decode(s.events[i]))
                except (msgspec.MsgspecError, RecordError) as error:
                    self._drop(s, i, error)
                else:
                    found.setdefault(key, []).append(told_one)
        for key, told in found.items():
            try:
                detectors = await self._of(slices[-1].partition, key)
            except RecordError as error:
                for s, i, command in told:
                    if isinstance(command, Command):
                        model = key.partition("@")[0]
                        self._answer(s, i, model, refusal(command.source, model, str(error), command.ts), command)
                    else:
                        self._drop(s, i, error)
            else:
                await self._let_see(slices[-1].partition, key, detectors, told)

    async def _let_see(self, partition: int, key: str, detectors: Detectors, told: list[Told]) -> None:
        model, version = key.split("@", 1)
        deployment = self._engine.models.wanted(model)
        # Until all is staged: should something raise, the table's value is what counts.
        del self._detectors[partition, key]
        for group in _together(told):
            s, i, record = group[-1]
            if isinstance(record, Scored):
                scored = [(cast(Scored, one.record), one.s.records[one.at].timestamp) for one in group]
                for place, error in detectors.take(scored).items():
                    self._drop(group[place].s, group[place].at, error)
            for change in detectors.fold() if isinstance(record, Scored) else detectors.see(record):
                await self._tell(s, i, model, version, change, deployment, detectors)
            for alert in detectors.singles_told(key, deployment):
                s.send(ALERTS, key, alert, i)
            if isinstance(record, Command):
                self._answer(s, i, model, _done(key, record), record)
            elif isinstance(record, Scored) and record is not told[-1].record:
                await asyncio.sleep(0)
        if deployment is not None and (open_one := detectors.unanswered(key, version, deployment)) is not None:
            s, i, _ = told[-1]
            s.send(ALERTS, key, open_one, i)
        detectors.keep(key)
        self._detectors[partition, key] = detectors

    async def _tell(
        self,
        s: Slice[bytes],
        at: int,
        model: str,
        version: str,
        change: Change,
        deployment: Deployment | None,
        detectors: Detectors,
    ) -> None:
        alert = alert_of(change)
        action = asked(change, version, deployment, alert.id)
        if action is not None and action.based_on is not None:
            detectors.answered = action.based_on
        if action is not None and await may(self._engine.connection, WRITE, self._engine.topic_name(CONTROL)):
            alert.evidence["response"] = {"asked": action.response or action.action, "based_on": action.based_on}
            ask(s, model, action, at)
        elif action is not None:
            log.error("Nothing is done about the drift of %s@%s: the broker lets nobody ask here", model, version)
            alert.evidence["response"] = {"refused": f"no WRITE on {self._engine.topic_name(CONTROL)}"}
        else:
            alert.evidence["response"] = {"asked": None, "why": unasked(change, version, deployment)}
        s.send(ALERTS, change.subject, alert, at)

    def _answer(self, s: Slice[bytes], at: int, model: str, alert: Alert, command: Command) -> None:
        """Tells who asked, where and as what the answer to the request is looked for."""
        [headers] = output_headers(s.topic, s.partition, s.records[at : at + 1], s.parents)
        headers = [("source", command.source.encode()), *(one for one in headers if one[0] != "source")]
        partition = partition_of(model.encode(), self._partitions)
        s.emit(ALERTS, [alert.subject.encode()], [_encode(alert)], [headers], partition)

    async def _of(self, partition: int, key: str) -> Detectors:
        """A version's detectors, as the table has them. Raises UnknownVersionError for what no store has."""
        stored = watches.watch(key)
        kept = self._detectors.get((partition, key))
        if kept is not None and stored is not None and kept.raw == stored[0]:
            self._detectors.move_to_end((partition, key))
            return kept
        reference = references.reference(key)
        if stored is not None and reference is not None:
            made = Detectors(reference.spec, self._topic, self._partitions, stored[1], reference)
        else:
            made = Detectors(await self._spec(key), self._topic, self._partitions)
        self._detectors[partition, key] = made
        if len(self._detectors) > KEPT:
            self._detectors.popitem(last=False)
        return made

    async def _spec(self, key: str) -> Spec:
        model, version = key.split("@", 1)
        models = self._engine.models
        deployment = models.wanted(model)
        preset = deployment.preset if deployment is not None else "default"
        for live in models.versions():
            if live.manifest.identity == key:
                return Spec.of(live.manifest, preset)
        try:
            return Spec.of(await asyncio.to_thread(models.store.manifest, model, version), preset)
        except (ModelError, ValueError) as error:
            raise UnknownVersionError(key, str(error)) from None

    def _drop(self, s: Slice[bytes], at: int, error: Exception) -> None:
        reason = error if isinstance(error, RecordError) else DecodeError(f"no scores: {error}")
        s.dropped.append((s.records[at].offset, dead_letter(s, s.records[at], reason)))


class Detectors:
    """A version's, in memory."""

    def __init__(
        self,
        spec: Spec,
        topic: str,
        partitions: int,
        watch: Watch | None = None,
        reference: Reference | None = None,
    ) -> None:
        """topic, partitions: of the observations."""
        self.raw: bytes | None = None
        """As the table holds what they have seen."""
        self._spec = spec
        self._columns = len(spec.described)
        self._topic = topic
        self._ordering = Ordering(partitions, self._columns, watch.ordering if watch else None, topic)
        self._monitor = Monitor(spec, watch.monitor if watch else None, reference.frozen if reference else None)
        self._singles = watch.singles if watch else Singles()
        self.answered = watch.answered if watch else 0
        """Revision that the drift was answered at, or told that it isn't."""
        self.told = watch.told if watch else False
        """Whether the latter was, since the drift opened."""
        self._written = reference.frozen if reference else None
        self._seen: Answers | None = None
        self._now = 0

    def take(self, scored: Sequence[tuple[Scored, int]]) -> dict[int, DecodeError]:
        """Puts answers in order; fold() looks at those whose turn has come. scored: each with when it was written, ms
        since epoch. Returns what is wrong with some of them, by their place."""
        self._now = scored[-1][1]
        wrong = faults([one for one, _ in scored], self._columns)
        good = [(one, at) for i, (one, at) in enumerate(scored) if i not in wrong and len(one)]
        if good:
            answers = Answers.of([one for one, _ in good], self._columns, self._topic)
            self._ordering.add_all(answers, [len(one) for one, _ in good], [at for _, at in good])
        return wrong

    def fold(self) -> list[Change]:
        """What a person should hear of them."""
        self._seen = self._ordering.turn()
        return [] if self._seen is None else self._monitor.fold(self._seen)

    def see(self, record: Outcomes | Command) -> Iterator[Change]:
        """What a person should hear of it."""
        self._seen = None
        if isinstance(record, Outcomes):
            yield from self._monitor.judge(_placed(record, self._topic))
        else:
            if record.does == "reset" and (before := self._ordering.flush()) is not None:
                yield from self._monitor.fold(before)  # what comes after is the new reference
            yield from obey(self._monitor, record)

    def singles_told(self, key: str, deployment: Deployment | None) -> Iterator[Alert]:
        """One alert for each answer with low confidence, as many as the deployment asks for."""
        most = deployment.low_alerts if deployment is not None else 0.0
        if self._seen is None or not most:
            return
        for place, kept_back in self._singles.pick(self._seen, self._spec.low_confidence, most, self._now):
            yield _single(key, self._seen, place, self._spec, kept_back)

    def unanswered(self, key: str, version: str, deployment: Deployment) -> Alert | None:
        """Told once where a person has deployed a version whose drift is open: they know best, so nothing is done."""
        level = self._monitor.conditions["drift"].level
        self.told = self.told and bool(level)
        if (
            version != deployment.active
            or self.told
            or not deployment.response
            or deployment.author in OURS
            or deployment.revision <= self.answered
            or not level
        ):
            return None
        self.answered, self.told = deployment.revision, True
        return Alert(
            id=f"deployments/{deployment.model}/{deployment.revision}/drift_unanswered/{key}/opened",
            kind="drift_unanswered",
            severity="warning",
            state="opened",
            subject=key,
            ts=deployment.since,
            title=f"{key} answers though its drift is open: nothing is done about it by itself before a reset",
            evidence={"revision": deployment.revision, "response": deployment.response},
        )

    def keep(self, key: str) -> None:
        """Writes what has changed."""
        self.raw = packed(Watch(self._ordering.state, self._monitor.state, self._singles, self.answered, self.told))
        watches[key] = self.raw
        if self._monitor.frozen is not self._written:
            self._written = self._monitor.frozen
            references[key] = packed(Reference(self._spec, self._written))


def alert_of(change: Change) -> Alert:
    """The alert that tells of a change."""
    suffix = "/reminder" if change.reminder else ""
    model, _, version = change.subject.partition("@")
    return Alert(
        id=f"{change.source}/{change.kind}/{change.subject}/{change.state}{suffix}",
        kind=change.kind,
        severity=change.severity,
        state=change.state,
        subject=change.subject,
        ts=change.ts,
        title=change.title,
        evidence={"model": model, "version": version, **change.evidence},
    )


def _done(key: str, command: Command) -> Alert:
    done = f"drift_{DONE[command.does]}"
    return Alert(
        id=f"{command.source}/{done}/{key}/resolved",
        kind=done,
        severity="info",
        state="resolved",
        subject=key,
        ts=command.ts,
        title=f"{command.by} {SAID[command.does]} {key}",
        evidence={"request": command.source, "by": command.by, "kind": command.kind},
    )


def _placed(outcomes: Outcomes, topic: str) -> Outcomes:
    """With the sources that the broker knows."""
    if topic == OBSERVATIONS.name:
        return outcomes
    placed = (
        msgspec.structs.replace(one, source=topic + one.source.removeprefix(OBSERVATIONS.name))
        for one in outcomes.outcomes
    )
    return msgspec.structs.replace(outcomes, outcomes=tuple(placed))


def _single(key: str, answers: Answers, place: int, spec: Spec, kept_back: int) -> Alert:
    assert answers.confidence is not None
    source, sure = answers.source(place), round(float(answers.confidence[place]), 6)
    best = int(answers.best[place])
    evidence: dict[str, Any] = {
        "model": spec.name,
        "version": spec.version,
        "source": source,
        "confidence": sure,
        "below": spec.low_confidence,
        "label": spec.labels[best] if best < len(spec.labels) else None,
        "score": round(float(answers.score[place]), 6),
    }
    if kept_back:
        evidence["kept_back"] = kept_back
    return Alert(
        id=f"{source}/low_confidence/{key}/opened",
        kind="low_confidence",
        severity="info",
        state="opened",
        subject=key,
        ts=int(answers.ts[place]),
        title=f"{key} is not sure of {source}: confidence {sure:.3f}, below {spec.low_confidence:g}",
        evidence=evidence,
    )


def _together(told: Iterable[Told]) -> Iterator[list[Told]]:
    """Scores that follow each other together, since a look at them costs by itself, but no more than MOST answers; all
    else one by one."""
    group, answers = list[Told](), 0
    for one in told:
        size = len(one.record) if isinstance(one.record, Scored) else MOST + 1
        if group and answers + size > MOST:
            yield group
            group, answers = [], 0
        group.append(one)
        answers += size
    yield group


def _version_of(key: bytes | None) -> str:
    try:
        text = (key or b"").decode()
    except UnicodeDecodeError:
        text = ""
    model, _, version = text.partition("@")
    if not model or not version:
        raise DecodeError("scores are keyed by NAME@VERSION; this record's key is none")
    return text
