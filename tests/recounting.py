"""What sessions must hold of features that began late, counted from the log by the fold that training uses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from tables.aggregates import Aggregates
from tests.rig import Rig
from tests.stream import EPOCH_MS
from tests.worker import Worker, until

MORE = ("session.variance.f0", "session.max.f0", "session.decayed_mean.f0@1m")
"""What a later version asks for beside."""
SESSIONS = 500
"""That many are looked at."""


def keepings(rig: Rig) -> dict[int, dict[str, Any]]:
    """Partition -> what its sessions keep, as is committed."""
    reader = rig.reader(f"{rig.prefix}app-sessions-changelog")
    reader.catch_up()
    notes = {one.partition: one.value for one in reader.records if one.key == b"\xffnote:keeping"}
    return {partition: json.loads(raw) for partition, raw in notes.items() if raw is not None}


def backfill_of(worker: Worker) -> dict[str, Any]:
    """How far a worker says that it is."""
    answer = worker.get("/models")
    return dict(answer.json()["models"].get("tally", {}).get("backfill", {})) if answer.status == 200 else {}


def late_of(worker: Worker) -> set[str]:
    """The features of the active version that a worker says began late, in all of its partitions."""
    answer = worker.get("/models")
    found = answer.json()["models"].get("tally", {}).get("late_features", {}) if answer.status == 200 else {}
    return {name for name, one in found.items() if "since" in one and "waiting" not in one}


def send_refused(rig: Rig, count: int = 100) -> None:
    """Observations of sessions that there are, for a model that there isn't: dead letters, which count for nothing."""
    for number in range(count):
        session = f"s{number}"
        event = {"id": f"x{number}", "session": session, "ts": EPOCH_MS + number, "features": {"f0": 3.0}}
        raw = json.dumps(event | {"model": "nobody"}).encode()
        rig.publisher.send(rig.topic("observations"), session.encode(), raw)
    rig.publisher.flush()


def first_of(keeping: dict[str, Any], feature: str) -> int | None:
    """Offset of the first observation that is in a feature; None where none has come."""
    column = Aggregates([feature]).read_from[feature][0]
    source = keeping["columns"].get(column, {}).get("source")
    return None if source is None else int(source.rpartition("/")[2])


def assert_recounted(rig: Rig, features: Sequence[str] = MORE, *, since: int | None = None) -> None:
    """Each session has of these what the observations from their beginning on give, bit for bit. since: the offset
    that they must begin at, in every partition that has any."""
    found, log, letters = keepings(rig), rig.reader("observations"), rig.reader("dead-letters")
    log.catch_up()
    letters.catch_up()
    refused = {letter.headers["source"] for letter in letters.records}
    aggregates = Aggregates(features)
    names = [name for feature in features for name in aggregates.read_from[feature]]
    places: dict[str, int] = {}
    events = []
    for record in log.records:
        first = first_of(found[record.partition], features[0])
        assert since is None or first == since, f"partition {record.partition} begins at {first}"
        if f"{record.topic}/{record.partition}/{record.offset}" in refused:
            continue
        event = record.json
        place = places.setdefault(event["session"], len(places))
        if first is not None and record.offset >= first:
            events.append((place, event["ts"], *(event["features"][field] for field in aggregates.fields)))
    counted, state = np.array(events, np.float64), np.tile(aggregates.empty, (len(places), 1))
    aggregates.fold(state, counted[:, 0].astype(np.intp), counted[:, 1], counted[:, 2:])
    wrong = []
    for session, place in list(places.items())[:SESSIONS]:
        told = rig.state(session)
        shown = told | told["accumulators"]
        for name in names:
            expected = state[place][aggregates.columns.index(name)]
            got = shown.get(name, np.nan)
            if isinstance(got, str):
                continue  # a time, told for people
            if not (got == expected or (np.isnan(expected) and np.isnan(got))):
                wrong.append(f"{session}: {name} is {got}, a recount has {expected}")
    assert not wrong, f"{len(wrong)} values differ; the first:\n" + "\n".join(wrong[:5])


def wait_filled(rig: Rig, revision: int, within_s: float = 60.0) -> None:
    """Waits until every partition counts what was filled."""

    def done() -> bool:
        told = [backfill_of(worker) for worker in rig.running()]
        here = [one.get("done", 0) for one in told if one.get("revision") == revision]
        return bool(sum(here) == rig.partitions)

    until(done, within_s, what="the backfill is done everywhere", alive=rig.running())
