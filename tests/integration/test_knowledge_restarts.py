"""Knowledge through restarts, another embedder and lost files: every worker answers as before."""

from __future__ import annotations

from functools import partial

import pytest

from tests.integration.test_knowledge import embedder, has, names, put, search, status, wait
from tests.rig import Rig

pytestmark = pytest.mark.long


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
