"""Labels that come back find the answers that they judge, over a real broker."""

from __future__ import annotations

from typing import Any

import pytest

from tests import tally
from tests.labels import AWAITS, about, expected, say, sums, truth
from tests.rig import Rig
from tests.worker import Worker, until


def test_labels_find_their_answers(rig: Rig) -> None:
    find_their_answers(rig)


def quality(worker: Worker) -> dict[str, Any]:
    """What labels say of version 1, as /models tells it."""
    return dict(worker.get("/models").json()["quality"].get("tally@1", {}).get("figures", {}))


def find_their_answers(rig: Rig) -> None:
    tally.publish(rig.store, feedback=AWAITS)
    worker = rig.worker("a", session_timeout=3).start()
    rig.deploy()
    sender = rig.sender().send(200)
    say(rig, (one for sent in rig.sent for one in about(sent)))
    rig.wait_predictions()
    sender.send(100)
    say(rig, (one for sent in rig.sent[200:] for one in about(sent)))
    rig.publisher.send(rig.topic("feedback"), b"s1", b"nonsense")
    rig.publisher.send(rig.topic("feedback"), None, b'{"id": "x"}')
    rig.wait_predictions()
    rig.wait_records("dead-letters", 2)
    until(lambda: sums(rig) == expected(rig), 60, what="all labels are told", alive=[worker])
    one = rig.sent[5]
    shown = worker.get(f"/tables/predicted/{one.session}%2F{one.id}").json()
    assert [answer["version"] for answer in shown["answers"]] == ["tally@1"]
    metrics = worker.get("/metrics").text
    assert 'homunculus_feedback_total{outcome="corrected"}' in metrics
    figures = worker.get("/models").json()["models"][tally.NAME]["figures"]
    assert figures["labelled"] == len(expected(rig))
    assert figures["right"] == sum(truth(sent) == "rest" for sent in rig.sent)
    until(lambda: quality(worker).get("rows") == figures["labelled"], 30, what="detectors know them", alive=[worker])
    assert quality(worker)["accuracy"] == pytest.approx(figures["right"] / figures["labelled"], abs=1e-5)
    [listed] = worker.get("/drift").json()["versions"]
    assert listed["quality"]["figures"] == quality(worker)
    assert {"log_loss", "ece"} <= quality(worker).keys()
    assert 'homunculus_model_quality{figure="accuracy",model="tally",version="1"}' in worker.get("/metrics").text
    rig.assert_exact(repeated=not rig.broker.transactions)
