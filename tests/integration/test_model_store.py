"""Model folders that must not go live: the version that is live stays, and with none the worker waits and says why."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
from functools import partial
from pathlib import Path
from typing import Final

from models.store import ModelStore
from tests import tally
from tests.rig import Rig
from tests.worker import free_port, until


def missing(store: Path, version: str) -> str:
    """No folder of that version; returns a part that the reason must have."""
    assert not (store / tally.NAME / version).exists()
    return f"tally@{version} is not in the store"


def tampered(store: Path, version: str) -> str:
    """model.onnx has one byte that its manifest doesn't know."""
    folder = tally.publish(store, version)
    with (folder / "model.onnx").open("ab") as model:
        model.write(b"\0")
    return "model.onnx"


def without_manifest(store: Path, version: str) -> str:
    """A model that nobody says anything about."""
    (tally.publish(store, version) / "manifest.json").unlink()
    return f"tally@{version}"


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


REFUSED: Final = (missing, without_manifest)
"""Of what isn't a version: the request on control is refused."""
FAILING: Final = (tampered, contradicted, wrong)
"""Of what a worker finds out when it loads the version."""


def test_a_version_that_cannot_go_live_leaves_the_one_that_is(rig: Rig) -> None:
    worker = rig.worker("a").start()
    rig.deploy("1")
    sender = rig.sender().send(500)
    alerts = rig.reader("alerts")
    for number, fault in enumerate([*REFUSED, *FAILING]):
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


def test_without_a_live_version_the_worker_stays_up_says_why_and_events_wait(rig: Rig) -> None:
    worker = rig.worker("a").start()
    shutil.rmtree(rig.store)

    def says(reason: str) -> bool:
        answer = worker.get("/health/ready")
        return answer.status == 503 and reason in answer.text

    until(partial(says, "no model is live"), 40, what="not ready: no model", alive=[worker])
    rig.sender().send(1000)
    for number, fault in enumerate(FAILING):
        word = fault(rig.store, str(2 + 2 * number))
        rig.control({"active": str(2 + 2 * number)})
        until(partial(says, word), 40, what=f"not ready: {fault.__doc__}", alive=[worker])
        assert worker.get("/health/live").status == 200
    rig.deploy("1")
    rig.assert_exact()


def test_a_first_start_while_the_store_is_away_waits_for_it_says_so_and_goes_on_once_it_is_back(rig: Rig) -> None:
    port = free_port()
    worker = rig.worker("a", model_store=f"http://127.0.0.1:{port}").start()

    def waits() -> bool:
        answer = worker.get("/health/ready")
        return answer.status == 503 and "the model store is waited for" in answer.text

    until(waits, 40, what="not ready: the store is away", alive=[worker])
    assert worker.get("/health/live").status == 200
    tally.publish(rig.store, "1")
    ModelStore(str(rig.store)).index()
    rig.control({"active": "1"})
    rig.sender().send(200)
    serve = partial(http.server.SimpleHTTPRequestHandler, directory=str(rig.store))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), serve) as web:
        threading.Thread(target=web.serve_forever, args=(0.05,), daemon=True).start()
        worker.wait_ready(60)
        rig.assert_exact()
        web.shutdown()
    told = rig.reader("model-status").read_out()[-1].json
    assert told["device"] == "cpu", "a worker tells what its models run on"
