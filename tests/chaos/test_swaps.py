"""Swap after swap under load, with two workers: nothing is lost or repeated, and each version answers in its time."""

from __future__ import annotations

import json
import logging
import statistics
import time
from collections import defaultdict
from functools import partial
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka import Message

from tests import tally
from tests.endless import Judge, Load
from tests.rig import Rig
from tests.stream import Publisher

logger = logging.getLogger(__name__)

SLACK_MS: Final = 5_000
"""How long after its end a version may still be read of: its last batches are computed and committed meanwhile."""


class Span(NamedTuple):
    """When answers of a version were written, by the first and the last of them: ms since epoch."""

    first: int
    last: int


class Versions:
    """Which versions answered, when, and in which order within each session."""

    def __init__(self, partitions: int) -> None:
        self.spans: dict[int, Span] = {}
        self.newest = dict.fromkeys(range(partitions), 0)
        """Partition -> the version of its last answer."""
        self._of_sessions: dict[str, int] = {}

    def take(self, prediction: dict[str, Any], message: Message) -> None:
        session, version = prediction["session"], int(prediction["version"])
        before = self._of_sessions.get(session, 0)
        assert before <= version, f"{session} was answered by {before}, and then by {version}"
        self._of_sessions[session] = version
        partition, (_, ts) = message.partition(), message.timestamp()
        assert partition is not None
        self.newest[partition] = version
        first, last = self.spans.get(version, (ts, ts))
        self.spans[version] = Span(min(first, ts), max(last, ts))

    def everywhere(self, version: int) -> bool:
        """Whether all partitions have come to it."""
        return set(self.newest.values()) == {version}


@pytest.mark.parametrize(
    ("swaps", "rate"),
    [
        pytest.param(5, 2000, id="5 swaps", marks=pytest.mark.long),
        pytest.param(200, 5000, id="200 swaps", marks=[pytest.mark.long, pytest.mark.timeout(600)]),
    ],
)
def test_swaps_under_load_lose_nothing_and_every_answer_is_of_a_version_that_was_live(
    rig: Rig, swaps: int, rate: float
) -> None:
    for version in range(1, swaps + 2):
        tally.publish(rig.store, str(version))
    for name in "ab":
        rig.worker(name).start()
    rig.deploy("1")
    requests, versions, took = Publisher(rig.broker.bootstrap), Versions(rig.partitions), []
    with Load(rig.publisher, rig.topic("observations"), sessions=2000, rate=rate) as load:
        judge = Judge(rig, load, versions.take)
        judge.look_until(partial(versions.everywhere, 1), 60, "answers in each partition")
        for version in range(2, swaps + 2):
            began = time.monotonic()
            requests.send(rig.topic("control"), tally.NAME.encode(), json.dumps({"active": str(version)}).encode())
            requests.flush()
            judge.look_until(partial(versions.everywhere, version), 60, f"all answer with {version}")
            took.append(time.monotonic() - began)
    judge.look_to_the_end()
    rig.terminate()
    logger.warning(
        "%d events, %d swaps; from the request until all partitions answer with it: median %.2f s, longest %.2f s",
        judge.read,
        swaps,
        statistics.median(took),
        max(took),
    )
    assert sorted(versions.spans) == list(range(1, swaps + 2)), "every version answered"
    assert_in_its_time(rig, versions, last=swaps + 1)


def assert_in_its_time(rig: Rig, versions: Versions, last: int) -> None:
    """No version answers before a worker says that it is live, or after all say that the next one is."""
    live: defaultdict[int, list[int]] = defaultdict(list)
    for status in rig.reader("model-status").read_out():
        found = status.json["models"].get(tally.NAME, {})
        if found.get("role") == "active":
            live[int(found["version"])].append(found["since"])
    assert sorted(live) == list(range(1, last + 1)), "every version was told of"
    for version, span in versions.spans.items():
        assert min(live[version]) <= span.first, f"{version} answered at {span.first}, and was live at {live[version]}"
        if version < last:
            ended = max(live[version + 1])
            assert span.last <= ended + SLACK_MS, f"{version} answered at {span.last}, and ended at {ended}"
