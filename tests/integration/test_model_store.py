"""Model folders that must not go live: the version that is live stays, and with none the worker waits and says why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import tally
from tests.rig import Rig
from tests.worker import until


def missing(store: Path, version: str) -> str:
    """No folder of that version; returns a word that the reason must have."""
    assert not (store / tally.NAME / version).exists()
    return version


def tampered(store: Path, version: str) -> str:
    """model.onnx has one byte that its manifest doesn't know."""
    folder = tally.publish(store, version)
    with (folder / "model.onnx").open("ab") as model:
        model.write(b"\0")
    return "model.onnx"


def without_manifest(store: Path, version: str) -> str:
    """A model that nobody says anything about."""
    (tally.publish(store, version) / "manifest.json").unlink()
    return "manifest.json"


def contradicted(store: Path, version: str) -> str:
    """The manifest names an output that the graph hasn't."""
    path = tally.publish(store, version) / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"outputs": {"probabilities": "odds"}}))
    return "odds"


def wrong(store: Path, version: str) -> str:
    """The model doesn't compute what its golden example says."""
    path = tally.publish(store, version) / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["golden"][0]["expected"]["count"] = 0.5
    path.write_text(json.dumps(manifest))
    return "golden"


FAULTS = [missing, tampered, without_manifest, contradicted, wrong]


def test_a_version_that_cannot_go_live_leaves_the_one_that_is(rig: Rig) -> None:
    worker = rig.worker("a").start()
    rig.deploy("1")
    sender = rig.sender().send(500)
    alerts = rig.reader("alerts")
    for number, fault in enumerate(FAULTS):
        version = str(2 + 2 * number)
        word = fault(rig.store, version)
        known = alerts.catch_up()
        rig.control({"active": version})
        rig.wait_records("alerts", known + 1)
        texts = [json.dumps(alert.json) for alert in alerts.records[known:]]
        assert any(version in text and word in text for text in texts), f"{fault.__doc__}: {texts}"
        sender.send(100)
        assert worker.ready(), worker.get("/health/ready")
    rig.assert_exact()
    assert {record.json["version"] for record in rig.reader("predictions").records} == {"1"}


@pytest.mark.parametrize("fault", FAULTS)
def test_without_a_live_version_the_worker_stays_up_not_ready_and_says_why(
    rig: Rig, fault: Callable[[Path, str], str]
) -> None:
    worker = rig.worker("a").start()
    word = fault(rig.store, "2")
    rig.control({"active": "2"})
    until(lambda: word in worker.get("/health/ready").text, 40, what=f"why: {word}", alive=[worker])
    assert worker.get("/health/ready").status == 503
    assert worker.get("/health/live").status == 200


def test_a_worker_with_an_empty_store_takes_its_first_model_from_control_and_events_wait_for_it(rig: Rig) -> None:
    worker = rig.worker("a").start()
    shutil.rmtree(rig.store)
    until(lambda: worker.get("/health/ready").status == 503, 40, what="up, not ready", alive=[worker])
    rig.sender().send(1000)
    assert "model" in worker.get("/health/ready").text
    rig.deploy("1")
    rig.assert_exact()
