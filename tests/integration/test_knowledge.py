"""Documents through a real broker: found within moments, by every worker; deleted for good; whatever dies meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from models.embedder.convert import convert
from tests.command import command
from tests.kafka import EMBEDDED_LATER, Broker
from tests.rig import Rig, rig_on
from tests.unit.knowledge.bert import sentence_folder
from tests.worker import Worker, until


def embedder(rig: Rig, version: str = "1", pooling: str = "mean_tokens") -> None:
    """Into the store, and asked for."""
    source = sentence_folder(rig.folder / f"source-{version}", pooling)
    convert(source, rig.store, name="small", version=version)
    rig.control({"active": version}, model="small")


def put(rig: Rig, name: str, text: str | None, **more: Any) -> None:
    value = None if text is None else json.dumps({"id": name, "text": text, **more}).encode()
    rig.publisher.send(rig.topic("documents"), name.encode(), value)
    until(rig.publisher.delivered, 30, what="the document is on its topic", alive=rig.running())


def search(worker: Worker, text: str, **more: str) -> list[dict[str, Any]]:
    answer = worker.get(f"/knowledge/search?{urlencode({'q': text, **more})}")
    found: list[dict[str, Any]] = answer.json()["found"] if answer.status == 200 else []
    return found


def wait(workers: list[Worker], what: str, condition: Callable[[Worker], bool], within_s: float = 30) -> None:
    until(lambda: all(condition(one) for one in workers), within_s, what=what, alive=workers)


def names(worker: Worker, text: str, **more: str) -> set[str]:
    return {one["document"] for one in search(worker, text, **more)}


def status(worker: Worker) -> dict[str, Any]:
    answer = worker.get("/knowledge")
    told: dict[str, Any] = answer.json() if answer.status == 200 else {"pending": None}
    return told


def has(told: dict[str, Any], worker: Worker) -> bool:
    return status(worker).items() >= told.items()


@EMBEDDED_LATER
def test_a_document_is_found_changed_and_deleted(broker: Broker, tmp_path: Path) -> None:
    with rig_on(broker, tmp_path) as rig:
        worker = rig.worker("a").start().wait_log("is open")
        put(rig, "cats", "# Cats\n\nThe cat sleeps at night.", tags=["animals"], url="https://a.b/cats")
        wait([worker], "words alone find it", lambda one: names(one, "cat") == {"cats"})
        embedder(rig)
        wait([worker], "its vectors are there", lambda one: status(one).get("vectors") == 1)
        (one,) = search(worker, "cat sleeps", tags="animals")
        assert one["headings"] == ["Cats"]
        assert one["text"] == "The cat sleeps at night."
        assert one["cosine"] > 0
        assert search(worker, "cat", tags="other") == search(worker, "cat", tenant="acme") == []

        put(rig, "cats", "# Cats\n\nThe cat barks.")
        wait([worker], "the change is found", lambda one: [f["text"] for f in search(one, "cat")] == ["The cat barks."])
        put(rig, "bomb", "<html>" + "<div>" * 5000)
        put(rig, "cats", None)
        wait([worker], "it is gone", lambda one: names(one, "cat barks") == set())
        rig.wait_records("dead-letters", 1)
        (letter,) = rig.reader("dead-letters").records
        assert letter.headers["error"] == "DocumentError"
        assert "nested 5,000 deep" in letter.headers["message"]
        assert letter.json["id"] == "bomb"
        wait([worker], "it is counted", lambda one: status(one).get("failed") == 1)

        assert worker.get("/knowledge/search").status == 400
        assert worker.get("/knowledge/search?q=a&count=0").status == 400
        assert worker.get("/knowledge/search?q=a&tenant=").status == 400
        said = command("knowledge", "search", "the cat", "--worker", worker.url)
        assert "Nothing that is known has to do with it." in said.stdout, said.stderr
