"""Labels for the events that a test has sent, what was told of them, and what ought to have been."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from core.events import Feedback
from models.drift.outcomes import Outcomes
from tests import tally
from tests.rig import Rig
from tests.stream import Sent

AWAITS: Final = {"horizon": 3600, "signals": {"click": "count"}}
"""For manifests."""


def about(one: Sent) -> list[Feedback]:
    """What comes of an event: nothing, a click, a label; perhaps corrections, in any order, and all of it twice."""
    number = int(one.id[1:])
    found = [
        Feedback(f"{one.id}-{kind}{after}", one.session, one.ts + after, one.id, kind, label=label)
        for kind, after, label, every in (
            ("correction", 9, tally.LABELS[number % 6], 7),
            ("click", 3, None, 2),
            ("correction", 5, tally.LABELS[number % 5], 3),
            ("label", 1, tally.LABELS[number % 4], 1),
        )
        if number % 11 and number % every == 0
    ]
    return found * (1 + (number % 4 == 0))


def truth(one: Sent) -> str | None:
    """What is to be believed in the end."""
    number = int(one.id[1:])
    if number % 11 == 0:
        return None
    return tally.LABELS[number % (6 if number % 7 == 0 else 5 if number % 3 == 0 else 4)]


def say(rig: Rig, feedback: Iterable[Feedback]) -> None:
    for one in feedback:
        rig.publisher.send(rig.topic("feedback"), one.session.encode(), msgspec.json.encode(one))
    rig.publisher.flush()


def outcomes(rig: Rig) -> Counter[tuple[str, str, int, int, int]]:
    """What was told by now: version, observation, label, weight, the offset that it came with -> how often."""
    reader, found = rig.reader("scores"), Counter[tuple[str, str, int, int, int]]()
    reader.catch_up()
    for record in reader.records:
        assert record.key is not None
        assert record.value is not None
        if msgspec.msgpack.decode(record.value)[0] == "outcomes":
            told = msgspec.msgpack.decode(record.value, type=Outcomes)
            for outcome, offset in zip(told.outcomes, told.offsets, strict=True):
                found[record.key.decode(), outcome.source, outcome.label, outcome.weight, offset] += 1
    return found


def sums(rig: Rig) -> dict[tuple[str, int], int]:
    found = Counter[tuple[str, int]]()
    for (_, source, label, weight, _), times in outcomes(rig).items():
        found[source, label] += weight * times
    return {what: weight for what, weight in found.items() if weight}


def expected(rig: Rig) -> dict[tuple[str, int], int]:
    reader = rig.reader("predictions")
    reader.catch_up()
    ids = {record.json["event_id"]: record.json["id"].removeprefix(rig.prefix) for record in reader.records}
    return {(ids[one.id], tally.LABELS.index(label)): 1 for one in rig.sent if (label := truth(one)) is not None}
