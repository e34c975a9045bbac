"""A model that is no longer sure of its answers: told once, answered as declared, unless a person says otherwise."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import sure
from tests.command import command
from tests.rig import Rig
from tests.stream import EPOCH_MS
from tests.worker import Worker, until

REFERENCE = 2000
RNG = np.random.default_rng(11)


def well(n: int) -> list[float]:
    """Mean confidence about .8."""
    return [float(p) for p in RNG.beta(30, 1.5, n).round(4)]


def ill(n: int) -> list[float]:
    """About .55."""
    return [float(p) for p in RNG.beta(12, 2, n).round(4)]


def active(rig: Rig) -> str | None:
    reader = rig.reader("deployments")
    reader.catch_up()
    return next((r.json.get("active") for r in reversed(reader.records) if r.key == sure.NAME.encode()), None)


def deployed(rig: Rig, worker: Worker, **request: Any) -> None:
    rig.control({"active": "2", **request}, model=sure.NAME)
    until(lambda: active(rig) == "2", 30, what="version 2 is deployed", alive=[worker])
    worker.wait_ready()


def started(rig: Rig, **request: Any) -> Worker:
    for version in ("1", "2"):
        sure.publish(rig.store, version)
    worker = rig.worker("a").start()
    deployed(rig, worker, **request)
    return worker


def answered_by(rig: Rig, version: str, first: int) -> int:
    """Sends events until a version answers one. Returns the next number."""
    number = first

    def answers() -> bool:
        nonlocal number
        number = sure.send(rig, ill(5), first=number)
        reader = rig.reader("predictions")
        reader.catch_up()
        return any(record.json["version"] == version for record in reader.records[-50:])

    until(answers, 20, what=f"version {version} answers", alive=rig.running())
    return number


def written(rig: Rig, topic: str, which: Callable[[Any], bool]) -> int:
    """ms since epoch: when the first record of this kind was, by the worker's clock."""
    return next(record.timestamp for record in rig.reader(topic).records if which(record.json))


def test_a_drift_is_told_once_and_the_fallback_answers_soon(rig: Rig) -> None:
    started(rig, fallback="1", response="freeze, fallback, retrain")
    n = sure.send(rig, well(REFERENCE + 600))
    rig.wait_records("predictions", n)
    n = sure.send(rig, ill(900), first=n)
    drift = sure.wait_alert(rig, "drift")
    n = answered_by(rig, "1", first=n)
    assert active(rig) == "1"
    told_at = written(rig, "alerts", lambda alert: alert["id"] == drift["id"])
    switched = written(rig, "predictions", lambda prediction: prediction["version"] == "1") - told_at
    # Two seconds are promised; this one shares its machine with other tests.
    assert switched <= 10_000, f"{switched} ms from the alarm to the first answer of the fallback"
    assert drift["subject"] == "sure@2"
    assert drift["severity"] == "critical"
    assert drift["evidence"]["response"] == {"asked": "freeze, fallback, retrain", "based_on": 1}

    told, deployments = rig.reader("alerts").records, rig.reader("deployments").records
    assert Counter(record.json["id"] for record in told).most_common(1)[0][1] == 1
    [retrain] = rig.reader("retrain").read_out()
    assert retrain.json["model"] == "sure"
    assert retrain.json["version"] == "2"
    assert retrain.json["alert"] == drift["id"]
    assert EPOCH_MS <= retrain.json["began"] <= retrain.json["until"] == drift["ts"]
    answered = sure.wait_alert(rig, "drift_response")
    assert answered["evidence"]["active"] == "1"
    assert deployments[-1].json["frozen"] is True
    assert deployments[-1].json["author"] == "drift"

    # The version that took over has a reference of its own, and nothing is wrong with it.
    n = sure.send(rig, ill(REFERENCE + 1000), first=n)
    rig.wait_records("predictions", n)
    until(lambda: rig.reader("predictions").records[-1].json["version"] == "1", 20, what="version 1 answers")
    rig.terminate()
    assert not [alert for alert in sure.alerts(rig) if alert["subject"] == "sure@1" and alert["kind"] == "drift"]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_person_who_was_quicker_is_obeyed_and_the_drift_is_known_to_them(rig: Rig, tmp_path: Path) -> None:
    """A freeze that the judge has, and the detectors' worker hasn't heard of: the response is based on what was."""
    worker = started(rig, fallback="1", response="fallback")
    n = sure.send(rig, well(REFERENCE + 600))
    rig.wait_records("predictions", n)
    # Both are on control before either is judged: the person's first.
    request = {"action": "respond", "version": "2", "response": "fallback", "based_on": 1, "author": "drift"}
    rig.publisher.send(rig.topic("control"), b"sure", json.dumps({"action": "freeze", "author": "anna"}).encode())
    rig.publisher.send(rig.topic("control"), b"sure", json.dumps(request).encode())
    refused = sure.wait_alert(rig, "request_refused")
    assert "is based on revision 1" in refused["title"]
    assert active(rig) == "2"

    n = sure.send(rig, ill(900), first=n)
    drift = sure.wait_alert(rig, "drift")
    until(lambda: active(rig) == "1", 10, what="a retreat passes a freeze", alive=[worker])
    settings = {key.removeprefix("HOMUNCULUS_").lower(): value for key, value in worker.environment.items()}
    said = command("drift", "acknowledge", "sure@2", "--alert", drift["id"], "--author", "anna", **settings)
    assert said.returncode == 0, said.stderr
    page = json.loads(command("--json", "drift", "show", "sure@2", **settings).stdout)
    assert {one["kind"]: one.get("by") for one in page["open"]}["drift"] == "anna"
    assert worker.get("/drift/sure@2").json()["open"] == page["open"]
    assert {one["subject"] for one in worker.get("/drift").json()["versions"]} == {"sure@2"}
    report = tmp_path / "report.html"
    assert command("drift", "report", "sure@2", "--out", str(report), **settings).returncode == 0
    assert "<svg" in report.read_text()
    nobody = command("drift", "reset", "sure@2", **settings)
    assert nobody.returncode == 1
    assert "only a person may reset" in nobody.stderr
    assert command("drift", "reset", "sure@2", "--author", "anna", **settings).returncode == 0
    assert worker.get("/drift/sure@2").json()["open"] == []


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_a_person_says_of_nothing_is_refused_and_a_drift_that_goes_on_is_said(rig: Rig) -> None:
    worker = started(rig, fallback="1", response="fallback")
    n = sure.send(rig, well(REFERENCE + 600))
    rig.wait_records("predictions", n)
    n = sure.send(rig, ill(900), first=n)
    sure.wait_alert(rig, "drift_response")
    settings = {key.removeprefix("HOMUNCULUS_").lower(): value for key, value in worker.environment.items()}
    nothing = command("drift", "reset", "sure@77", "--author", "anna", **settings)
    assert (nothing.returncode, "nothing is known of sure@77" in nothing.stderr) == (1, True)
    for said in ({"alert": "observations/0/1/banana/sure@2/opened"}, {"author": "limits"}):
        request = {"action": "acknowledge", "version": "2", "author": "anna", **said}
        before = len(sure.alerts(rig, "request_refused"))
        rig.control(request, model=sure.NAME)
        until(lambda before=before: len(sure.alerts(rig, "request_refused")) > before, 20, what="it is refused")  # type: ignore[misc]
    rig.control({"active": "2", "author": "anna"}, model=sure.NAME)
    until(lambda: active(rig) == "2", 20, what="version 2 is back", alive=[worker])
    until(lambda: status_version(worker) == "2", 20, what="it answers", alive=[worker])
    n = sure.send(rig, ill(300), first=n)
    told = sure.wait_alert(rig, "drift_unanswered")
    assert told["subject"] == "sure@2"
    assert active(rig) == "2"
    for action in ("freeze", "unfreeze"):
        rig.control({"action": action, "author": "anna"}, model=sure.NAME)
    n = sure.send(rig, ill(300), first=n)
    rig.wait_records("predictions", n)
    rig.control({"action": "acknowledge", "version": "2", "author": "anna"}, model=sure.NAME)
    sure.wait_alert(rig, "drift_acknowledged", "resolved")
    assert len(sure.alerts(rig, "drift_unanswered")) == 1, "once, whatever else somebody asks for"


def status_version(worker: Worker) -> str | None:
    found = worker.get("/models").json()["models"].get(sure.NAME, {}).get("version")
    return None if found is None else str(found)


def more(rig: Rig, alerts: int, predictions: int) -> bool:
    """Whether something more was told, or there is nothing more to come."""
    return rig.reader("alerts").catch_up() > alerts or rig.reader("predictions").catch_up() >= predictions


def test_an_alarm_that_opens_while_its_worker_is_killed_is_told_once(rig: Rig) -> None:
    worker = started(rig)
    n = sure.send(rig, well(REFERENCE + 600))
    rig.wait_records("predictions", n)
    n = sure.send(rig, ill(900), first=n)
    for _ in range(4):
        told = partial(more, rig, rig.reader("alerts").catch_up(), n)
        until(told, 20, what="something is told")
        worker.kill()
        worker.start()
    worker.wait_ready()
    rig.wait_records("predictions", n)
    sure.send(rig, ill(300), first=n)
    sure.wait_alert(rig, "drift")
    rig.terminate()
    ids = Counter(alert["id"] for alert in sure.alerts(rig))
    assert ids.most_common(1)[0][1] == 1
    assert len(sure.alerts(rig, "drift")) == 1


def test_garbage_among_the_scores_is_dead_letters_and_the_others_count(rig: Rig) -> None:
    worker = started(rig)
    n = sure.send(rig, well(REFERENCE))
    rig.wait_records("predictions", n)
    bad = [
        (b"sure@2", b"garbage"),
        (b"sure@2", None),
        (b"sure@2", b"\x96\xa6scored\x00\xc4\x03abc\xc4\x08\x00\x00\x00\x00\x00\x00\x00\x00\xc4\x00\xc4\x00"),
        (b"sure@1", b"{"),  # alone among the records of its version
        (b"no version", b"\x90"),
        (None, b"\x90"),
        (b"nobody@7", b"\x96\xa6scored\x00\xc4\x00\xc4\x00\xc4\x00\xc4\x00"),
        (b"../../etc@passwd", b"\x96\xa6scored\x00\xc4\x00\xc4\x00\xc4\x00\xc4\x00"),
    ]
    for key, value in bad:
        rig.publisher.send(rig.topic("scores"), key, value)
    rig.wait_records("dead-letters", len(bad))
    n = sure.send(rig, well(400), first=n)
    n = sure.send(rig, ill(900), first=n)
    sure.wait_alert(rig, "drift")
    assert worker.running
    sources = [record.headers["source"] for record in rig.reader("dead-letters").read_out()]
    assert len(sources) == len(set(sources)) == len(bad), "each is one dead letter"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_detectors_move_with_their_partition_and_tell_the_same(rig: Rig) -> None:
    for version in ("1", "2"):
        sure.publish(rig.store, version)
    a, b = rig.worker("a").start(), rig.worker("b").start()
    deployed(rig, a)
    b.wait_ready()
    n = sure.send(rig, well(REFERENCE + 600))
    rig.wait_records("predictions", n)
    for turn in range(6):
        (a, b)[turn % 2].kill()
        n = sure.send(rig, well(200), first=n)
        (a, b)[turn % 2].start().wait_ready()
        rig.wait_records("predictions", n)
    n = sure.send(rig, ill(300), first=n)
    a.kill()
    n = sure.send(rig, ill(600), first=n)
    a.start().wait_ready()
    sure.wait_alert(rig, "drift", within_s=60)
    began = time.monotonic()
    until(lambda: time.monotonic() > began + 1, 5, what="nothing more comes")
    rig.terminate()
    assert len(sure.alerts(rig, "drift")) == 1
    ids = Counter(alert["id"] for alert in sure.alerts(rig))
    assert ids.most_common(1)[0][1] == 1
