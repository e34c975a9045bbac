"""The wall clock of a worker jumps an hour forth and back: commits, watermark, windows and timers go on."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kafka import Broker
from tests.rig import Rig, rig_on
from tests.worker import Worker, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

HOUR_S = 3600
LIBRARIES = [
    *([Path(found)] if (found := os.environ.get("FAKETIME_LIBRARY")) else []),
    *Path("/usr/lib").glob("*/faketime/libfaketime.so.1"),
]
"""Debian's package libfaketime; FAKETIME_LIBRARY where it is elsewhere."""

Set = Callable[[float], None]
"""Sets the worker's clock: so many seconds off."""


@pytest.fixture(params=["time.time", "libfaketime"])
def clock(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[dict[str, str], Set]:
    """What a worker's environment needs, and how to set its clock."""
    file = tmp_path / "clock"
    if request.param == "time.time":
        environment = {"CLOCK": str(file)}
        text = "{:+f}"
    else:
        if not LIBRARIES:
            pytest.skip("no libfaketime here (on Debian and Ubuntu: apt-get install libfaketime)")
        file.write_text("+0")
        (tmp_path / "fixed").write_text("0")
        environment = {
            "LD_PRELOAD": str(LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "CLOCK": str(tmp_path / "fixed"),
        }
        text = "{:+.0f}"

    def set_to(seconds: float) -> None:
        new = file.with_suffix(".new")
        new.write_text(text.format(seconds))
        new.replace(file)

    set_to(0)
    return environment, set_to


@pytest.fixture
def rig(kafka: Broker, tmp_path: Path) -> Iterator[Rig]:
    """One partition, so that every event moves the watermark of all."""
    with rig_on(kafka, tmp_path, partitions=1) as rig:
        yield rig


def started(rig: Rig, environment: dict[str, str]) -> Worker:
    worker = rig.worker("a", app="tests.jumping.app", allowed_lateness=0.2)
    worker.environment |= environment
    return worker.start()


def test_commits_go_on_and_the_state_is_exact(rig: Rig, clock: tuple[dict[str, str], Set]) -> None:
    environment, set_clock = clock
    worker = started(rig, environment)
    rig.deploy()
    with rig.sender(rate=1000):
        for off in (HOUR_S, 0, -HOUR_S, 0, random.Random(1).uniform(-HOUR_S, HOUR_S)):
            rig.wait_progress(1000)
            set_clock(off)
            rig.wait_progress(3000, within_s=20)
        worker.kill()
        worker.start().wait_ready()
        rig.wait_progress(1000)
    rig.assert_exact()


def test_windows_close_and_timers_ring_by_the_time_of_the_events(rig: Rig, clock: tuple[dict[str, str], Set]) -> None:
    environment, set_clock = clock
    worker = started(rig, environment)
    rig.deploy()
    heard = rig.reader("heard")
    for number, off in enumerate((0, -HOUR_S, 0, HOUR_S, 0)):
        set_clock(off)
        click(rig, f"asked{number}", "question")

        def told(name: str = f"asked{number}") -> bool:
            """Events that are true to the real clock close the windows of those before them."""
            click(rig, "goes-on", "end")
            heard.catch_up()
            words = [record.json for record in heard.records if record.json[1].startswith(name)]
            return {"per-second", "recent", "visits", "reminder", "unanswered"} <= {word[0] for word in words}

        until(told, 20, what=f"all is told of with the clock {off} s off", alive=[worker])
    late = rig.reader("late")
    assert not late.catch_up(), [record.json for record in late.records[:3]]
    rig.terminate()


def click(rig: Rig, name: str, kind: str) -> None:
    """At this moment, whatever the worker thinks of it."""
    value = {"id": f"{name}-{time.monotonic_ns()}", "session": name, "ts": int(time.time() * 1e3), "kind": kind}
    rig.publisher.send(rig.topic("clicks"), name.encode(), json.dumps(value).encode())
    rig.publisher.flush()
