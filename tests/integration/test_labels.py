"""Labels through deaths of workers, on the other broker, and what they decide: each is told once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from core.events import Feedback
from tests import tally
from tests.integration.test_feedback import find_their_answers
from tests.kafka import Broker
from tests.labels import AWAITS, about, expected, outcomes, say, sums
from tests.rig import Rig, rig_on
from tests.worker import until


@pytest.mark.long
@pytest.mark.timeout(300)
def test_labels_find_their_answers_on_the_embedded_broker(embedded: Broker, tmp_path: Path) -> None:
    with rig_on(embedded, tmp_path) as rig:
        find_their_answers(rig)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_worker_that_is_killed_in_between_tells_each_label_once(rig: Rig) -> None:
    tally.publish(rig.store, feedback=AWAITS)
    worker = rig.worker("a").start()
    rig.deploy()
    with rig.sender(rate=600, sessions=50):
        told = 0
        for kill in range(2):
            for _ in range(4):
                before, told = told, len(rig.sent)
                say(rig, (one for sent in rig.sent[before:told] for one in about(sent)))
                rig.wait_progress(150)
            worker.kill()
            if kill:
                shutil.rmtree(worker.environment["HOMUNCULUS_DATA_DIR"])
            worker.start().wait_ready()
    say(rig, (one for sent in rig.sent[told:] for one in about(sent)))
    rig.wait_predictions()
    until(lambda: sums(rig) == expected(rig), 60, what="all labels are told", alive=[worker])
    assert set(outcomes(rig).values()) == {1}
    rig.assert_exact()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_canary_stands_or_falls_by_its_labels(rig: Rig) -> None:
    for version in ("1", "2", "3"):
        tally.publish(rig.store, version, feedback=AWAITS)
    workers = [rig.worker(name).start() for name in "ab"]
    rig.deploy("1")
    told = 0

    def flow(label: str) -> bool:
        """A few more events, with this label; whether the limits have spoken."""
        nonlocal told
        sender.send(100)
        say(rig, (Feedback(f"f-{s.id}", s.session, s.ts, s.id, "label", label=label) for s in rig.sent[told:]))
        told = len(rig.sent)
        return rig.reader("deployments").catch_up() >= decided

    sender = rig.sender(sessions=400)
    limits: dict[str, Any] = {"min_events": 150, "min_accuracy": 0.9, "min_labelled": 200}
    decided = 3
    rig.control({"action": "canary", "version": "2", "share": 0.5, "limits": limits})
    until(lambda: flow("rest"), 60, what="the canary is promoted", alive=workers)
    decided = 5
    rig.control({"action": "canary", "version": "3", "share": 0.5})
    until(lambda: flow("now"), 60, what="the canary is rolled back", alive=workers)
    found = [record.json for record in rig.reader("deployments").read_out()]
    assert [(one["active"], one.get("canary", {}).get("version"), one.get("author")) for one in found] == [
        ("1", None, None),
        ("1", "2", None),
        ("2", None, "limits"),
        ("2", "3", None),
        ("2", None, "limits"),
    ]
    assert "min_accuracy is 0.9, it has 0 after" in found[4]["reason"]
    alerts = [record.json for record in rig.reader("alerts").read_out()]
    figures = alerts[0]["evidence"]["figures"]
    assert figures["labelled"] == figures["right"] >= 200
