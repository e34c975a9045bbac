"""Garbage on observations: each lands in dead-letters with its bytes, its source and a reason; the others go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from tests import tally
from tests.kafka import Broker
from tests.rig import Rig, rig_on
from tests.stream import EPOCH_MS, Record

MEGABYTE: Final = 1_000_000
"""And what a dead letter may hold; the topics take a little more."""
SESSION: Final = "s1"
"""A session of good events too: a dead letter must leave no trace in its state."""


def event(**changes: Any) -> bytes:
    """A good observation, but for the changes; ... as a value leaves the field out."""
    good = {"id": "bad", "session": SESSION, "ts": EPOCH_MS, "features": {"f0": 1.0}}
    return json.dumps({name: value for name, value in (good | changes).items() if value is not ...}).encode()


def nested(depth: int) -> bytes:
    """A good observation, but for attributes within attributes."""
    return event(attributes=0).replace(b'"attributes": 0', b'"attributes": ' + b'{"a":' * depth + b"0" + b"}" * depth)


@dataclass(frozen=True)
class Bad:
    """A record that can't be scored, and a word that its reason must have."""

    value: bytes | None
    says: str
    error: str
    key: bytes | None = field(default=SESSION.encode())


GARBAGE: Final = {
    "not JSON": Bad(b"hello", "JSON", "DecodeError"),
    "cut off": Bad(event()[:40], "JSON", "DecodeError"),
    "empty": Bad(b"", "JSON", "DecodeError"),
    "null value": Bad(None, "null", "DecodeError"),
    "not UTF-8": Bad(event(id="X").replace(b"X", b"\xff\xfe"), "UTF-8", "DecodeError"),
    "a number": Bad(b"42", "object", "DecodeError"),
    "an empty object": Bad(b"{}", "id", "DecodeError"),
    "no session": Bad(event(session=...), "session", "DecodeError"),
    "session is a number": Bad(event(session=7), "session", "DecodeError"),
    "features are a list": Bad(event(features=[1.0]), "features", "DecodeError"),
    "a feature is an object": Bad(event(features={"f0": {"value": 1}}), "features", "DecodeError"),
    "ts is a date": Bad(event(ts="2026-11-29"), "ts", "DecodeError"),
    "ts beyond all time": Bad(event(ts=10**30), "ts", "DecodeError"),
    "field missing": Bad(event(features={"f1": 1.0}), "f0", "FieldError"),
    "field null": Bad(event(features={"f0": None}), "f0", "FieldError"),
    "field is text": Bad(event(features={"f0": "many"}), "f0", "FieldError"),
    "NaN": Bad(event(features={"f0": float("nan")}), "JSON", "DecodeError"),
    "beyond float64": Bad(event(features={"f0": 1}).replace(b'"f0": 1', b'"f0": 1e400'), "range", "DecodeError"),
    "an integer of 400 digits": Bad(event(features={"f0": 10**400}), "range", "DecodeError"),
    "beyond float32": Bad(event(features={"f0": 1e300}), "f0", "FieldError"),
    "1 MB in a feature": Bad(event(features={"f0": "x" * (MEGABYTE - 1000)}), "f0", "FieldError"),
    "1 MB in the id": Bad(event(id="x" * (MEGABYTE - 1000)), "id", "DecodeError"),
    "more than a record may hold": Bad(event(id="x" * (MEGABYTE + 30_000)), "id", "DecodeError"),
    "no key": Bad(event(id="no key"), "key", "KeyMismatchError", None),
    "another key": Bad(event(id="another key"), "key", "KeyMismatchError", b"s2"),
    "key isn't UTF-8": Bad(event(id="odd key"), "key", "KeyMismatchError", b"\xff\xfe"),
    "100,000 brackets": Bad(b"[" * 100_000, "object", "DecodeError"),
    "nested 100,000 deep": Bad(nested(100_000), "deep", "DecodeError"),
    "a model that nobody knows": Bad(event(model="oracle"), "oracle", "UnknownModelError"),
}


@dataclass(frozen=True)
class Aftermath:
    """What became of the garbage: where each kind stood, and the dead letters by the source that they name."""

    rig: Rig
    sources: dict[str, str]
    letters: dict[str, Record]

    def letter(self, kind: str) -> Record:
        """The dead letter of a kind."""
        assert self.sources[kind] in self.letters, f"no dead letter names {self.sources[kind]} as its source"
        return self.letters[self.sources[kind]]


@pytest.fixture(scope="module")
def aftermath(kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    """All the garbage, in between good events of the same sessions, has been worked off."""
    with rig_on(kafka, tmp_path_factory.mktemp("garbage"), partitions=2) as rig:
        rig.worker("a").start()
        rig.deploy()
        sender = rig.sender(sessions=20).send(100)
        for bad in GARBAGE.values():
            rig.publisher.send(rig.topic("observations"), bad.key, bad.value)
            sender.send(20)
        rig.wait_predictions()
        rig.wait_records("dead-letters", len(GARBAGE))
        observations, letters = rig.reader("observations"), rig.reader("dead-letters").records
        observations.catch_up()
        places = {(r.key, r.value): f"{r.topic}/{r.partition}/{r.offset}" for r in observations.records}
        sources = {kind: places[bad.key, bad.value] for kind, bad in GARBAGE.items()}
        yield Aftermath(rig, sources, {letter.headers["source"]: letter for letter in letters})


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_lands_in_dead_letters_with_its_bytes_and_a_reason_that_a_person_understands(
    aftermath: Aftermath, kind: str
) -> None:
    bad, letter = GARBAGE[kind], aftermath.letter(kind)
    assert letter.headers["error"] == bad.error
    assert bad.says in letter.headers["message"]
    assert len(letter.headers["message"]) < 1000, "a reason, not the payload again"
    assert letter.key == bad.key
    whole, kept = bad.value or b"", letter.value or b""
    if len(whole) > MEGABYTE:
        assert int(letter.headers["truncated"]) >= len(whole)
        assert whole.startswith(kept)
        assert kept
    else:
        assert "truncated" not in letter.headers
        assert kept == whole


def test_the_partition_goes_on_and_garbage_leaves_no_trace_in_the_state(aftermath: Aftermath) -> None:
    tally.assert_state_of_each(aftermath.rig.reader("predictions").read_out(), aftermath.rig.sent)
    assert len(aftermath.rig.reader("dead-letters").records) == len(GARBAGE)
