"""Feedback that waited for its answer, and turns out to be of no use: to where it would have gone at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from core.events import Feedback, Observation
from core.topics import FEEDBACK
from engine.batch import Slice
from engine.dead_letters import dead_letter
from engine.late import outlived_record
from engine.record import Headers
from models.joining import Fate, Refused


class Waited(NamedTuple):
    """Its record, as far as that is still known."""

    offset: int
    timestamp: int
    key: bytes
    value: bytes
    headers: Headers = ()


def give_back(s: Slice[Any], event: Observation, one: Refused) -> None:
    """To `late` or to dead-letters, with the outputs of the slice that has its event."""
    told = one.told
    feedback = Feedback(
        told.id, event.session, told.ts, event.id, told.type, label=told.label, score=told.score, model=told.model
    )
    record = Waited(told.offset, told.ts, event.session.encode(), msgspec.json.encode(feedback))
    engine = s.task.engine
    origin: Slice[Any] = Slice(s.task, engine.topic_name(FEEDBACK), [record])
    if one.fate is Fate.LATE:
        letter = outlived_record(origin, record, told.ts, one.end)
    else:
        letter = dead_letter(origin, record, one.why)
    s.outputs.append(letter)
    engine.meters.dropped(origin.topic, letter)
