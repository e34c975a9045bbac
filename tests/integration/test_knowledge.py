"""Documents through a real broker: found within moments, by every worker; deleted for good; whatever dies meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from models.embedder.convert import convert
from tests.command import command
from tests.kafka import Broker
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


def test_every_worker_knows_all_and_a_restart_or_another_embedder_changes_nothing(rig: Rig) -> None:
    a, b = rig.worker("a").start(), rig.worker("b").start()
    for worker in (a, b):
        worker.wait_log("is open")
    embedder(rig)
    for number in range(12):
        put(rig, f"d{number}", f"The cat number {number} sleeps. A dog barks.", tenant="acme" if number % 2 else None)
    wait([a, b], "both have all", partial(has, {"documents": 12, "pending": 0, "vectors": 12}), 60)
    expected = search(a, "the cat sleeps", count="20")
    assert len({one["document"] for one in expected}) == 6
    assert search(b, "the cat sleeps", count="20") == expected
    assert names(b, "cat", tenant="acme", count="20") == {f"d{n}" for n in range(1, 12, 2)}

    a.kill()
    put(rig, "d0", None)
    b.kill()
    a.start()
    wait([a], "it has heard of the deletion", lambda one: status(one).get("documents") == 11, 60)
    b.start()
    again = {"documents": 11, "caught_up": True, "embedder": "small@1"}
    wait([a, b], "both are the same again", partial(has, again), 60)
    without = [one | {"score": 0} for one in expected if one["document"] != "d0"]
    for worker in (a, b):
        assert [one | {"score": 0} for one in search(worker, "the cat sleeps", count="20")] == without
        assert "built anew" not in worker.log(1000)

    embedder(rig, "2", "cls_token")
    wait([a, b], "new vectors", partial(has, {"embedder": "small@2", "pending": 0, "vectors": 11}), 60)
    assert len(search(a, "the cat sleeps", count="20")) == 5
    rig.terminate()


@pytest.mark.long
def test_a_library_that_is_lost_or_damaged_is_built_anew_and_answers_the_same(rig: Rig) -> None:
    a = rig.worker("a").start().wait_log("is open")
    embedder(rig)
    for number in range(30):
        put(rig, f"d{number}", f"The cat number {number} sleeps. A dog barks.")
    wait([a], "all is known", partial(has, {"vectors": 30, "pending": 0}), 60)
    expected = search(a, "the cat sleeps", count="50")
    for harm in ("lost", "damaged"):
        a.kill()
        for file in (rig.folder / "data-a").rglob("knowledge.sqlite*"):
            if harm == "lost":
                file.unlink()
            else:
                file.write_bytes(b"nonsense" * 2000)
        a.start()
        whole = {"vectors": 30, "embedder": "small@1", "caught_up": True}
        wait([a], f"it is whole again after it was {harm}", partial(has, whole), 60)
        assert search(a, "the cat sleeps", count="50") == expected
