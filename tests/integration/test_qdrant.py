"""Workers with Qdrant on a real broker: away for a while, dead owners, deletions, tenants."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.integration.test_knowledge import embedder, has, names, put, search, status, wait
from tests.qdrant import KEY, StandIn
from tests.qdrant_grpc import GrpcStandIn
from tests.rig import Rig
from tests.worker import Worker, until

pytestmark = pytest.mark.long
AWAY_S = 60.0


@pytest.fixture(params=[StandIn, GrpcStandIn], ids=["http", "grpc"])
def server(request: pytest.FixtureRequest) -> Iterator[StandIn]:
    server: StandIn = request.param()
    yield server
    server.stop()


def workers(rig: Rig, server: StandIn) -> tuple[Worker, Worker]:
    rig.defaults |= {"qdrant_url": server.url, "qdrant_grpc_port": server.grpc_port or 0, "qdrant_api_key": KEY}
    a, b = rig.worker("a").start(), rig.worker("b").start()
    for worker in (a, b):
        worker.wait_log("is open")
    embedder(rig)
    return a, b


def points(server: StandIn, rig: Rig) -> set[str]:
    """Documents that have any."""
    return {str((one.payload or {})["passage"]).rpartition("#")[0] for one in server.points(f"{rig.prefix}app")}


def stale(worker: Worker) -> bool | None:
    answer = worker.get("/knowledge/search?q=cat")
    told: dict[str, Any] = answer.json() if answer.status == 200 else {}
    return told.get("stale")


def test_qdrant_away_for_a_minute_loses_nothing_and_stops_neither_scores_nor_answers(rig: Rig, server: StandIn) -> None:
    a, b = workers(rig, server)
    for number in range(8):
        put(rig, f"d{number}", f"The cat number {number} sleeps.")
    until(lambda: len(points(server, rig)) == 8, 60, what="all points are there", alive=rig.running())
    wait([a, b], "Qdrant answers", lambda one: stale(one) is False, 30)
    assert len(search(a, "the cat sleeps", count="20")) == 8
    assert all(one.get("cosine") for one in search(b, "the cat sleeps", count="20"))

    rig.deploy()
    server.stop()
    ends = time.monotonic() + AWAY_S
    sender = rig.sender(rate=200)
    with sender:
        for number in range(8, 16):
            put(rig, f"d{number}", f"The cat number {number} sleeps.")
        put(rig, "d0", None)
        expected = {f"d{number}" for number in range(1, 16)}
        wait([a, b], "words find what is new, and not what was deleted",
             lambda one: names(one, "cat", count="50") == expected)  # fmt: skip
        a.kill()  # what it had to tell Qdrant is the other's now
        while time.monotonic() < ends:
            assert names(b, "cat", count="50") == expected
            assert stale(b) is True
            time.sleep(0.5)
    server.start()
    until(lambda: points(server, rig) == expected, 60, what="Qdrant has all that came", alive=rig.running())
    wait([b], "nothing waits", lambda one: (status(one).get("qdrant") or {}).get("waiting") == 0)
    wait([b], "it isn't stale", lambda one: stale(one) is False)
    assert status(b)["qdrant"]["error"] is None
    assert all(one.get("cosine") for one in search(b, "the cat sleeps", count="50"))
    rig.wait_predictions()
    rig.terminate()


def test_a_deleted_document_leaves_qdrant_within_two_seconds_and_tenants_stay_apart(rig: Rig, server: StandIn) -> None:
    a, b = workers(rig, server)
    for number in range(6):
        put(rig, f"d{number}", f"The cat number {number} sleeps.", tenant=["acme", "bolt"][number % 2])
    until(lambda: len(points(server, rig)) == 6, 60, what="all points are there", alive=rig.running())
    for tenant, first in (("acme", 0), ("bolt", 1)):
        wait([a, b], f"{tenant} finds its own",
             lambda one, tenant=tenant, first=first:  # type: ignore[misc]
             names(one, "cat", tenant=tenant, count="20") == {f"d{n}" for n in range(first, 6, 2)})  # fmt: skip
    assert names(a, "cat", count="20") == names(b, "cat", tenant="other", count="20") == set()
    took = []
    for number in range(6):
        put(rig, f"d{number}", None)
        began = time.monotonic()
        gone = f"d{number}"
        until(lambda gone=gone: gone not in points(server, rig), 30, what="its points are gone", alive=rig.running())  # type: ignore[misc]
        took.append(time.monotonic() - began)
    assert max(took) < 2, took
    rig.terminate()


def test_a_server_that_lost_all_and_a_collection_of_another_kind(rig: Rig, server: StandIn) -> None:
    from qdrant_client.models import Distance, VectorParams

    server.data.create_collection(f"{rig.prefix}app", VectorParams(size=7, distance=Distance.COSINE))
    a, b = workers(rig, server)
    put(rig, "cats", "The cat sleeps.")
    wait([a, b], "words find it", lambda one: names(one, "cat") == {"cats"})
    wait([a, b], "the error is told", lambda one: "delete the collection" in str(status(one).get("qdrant")))
    a.wait_log("has vectors of 7 components by Cosine")
    assert stale(a) is True
    server.data.delete_collection(f"{rig.prefix}app")
    until(lambda: points(server, rig) == {"cats"}, 30, what="it is made by itself", alive=rig.running())
    server.stop()
    server.lose()
    server.start()
    put(rig, "dogs", "A dog barks.")
    until(lambda: points(server, rig) == {"cats", "dogs"}, 30, what="all is there again", alive=rig.running())
    wait([a, b], "it answers", lambda one: stale(one) is False)
    wait([a, b], "both have all", partial(has, {"documents": 2, "pending": 0, "vectors": 2}))
    rig.terminate()
