"""GET /drift: what detectors see, whichever worker has them."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from engine.publisher import partition_of
from tests.unit.web.detectors import NOW, put
from tests.unit.web.test_neighbours import assign
from tests.unit.web.worker import PARTITIONS, Make

LOSS = -0.75 * math.log(0.8) - 0.25 * math.log(0.2)


async def test_every_version_is_told_of_with_what_is_wrong(make: Make) -> None:
    one = (await make().start()).own(*range(PARTITIONS))
    assert await one.get("/drift") == (200, {"worker": one.app.engine.name, "versions": []})
    put(one, "churn", "1")
    put(one, "churn", "2", ill=True)
    status, seen = await one.get("/drift")
    assert status == 200
    told = {found["subject"]: {condition["kind"] for condition in found["open"]} for found in seen["versions"]}
    assert told["churn@1"] == set()
    assert {"drift", "drift_suspected"} <= told["churn@2"]
    status, page = await one.get("/drift/churn@2")
    assert status == 200
    assert page["answers"] == 4000
    assert page["confidence"]["histogram"]["reference"]


async def test_another_workers_versions_are_in_the_list_and_asked_for_there(make: Make) -> None:
    names = [f"m{n}" for n in range(50)]
    ours = next(name for name in names if partition_of(f"{name}@1".encode(), PARTITIONS) < 2)
    theirs = next(name for name in names if partition_of(f"{name}@1".encode(), PARTITIONS) >= 2)
    a, b = (await make().start()).own(0, 1), (await make().start()).own(2, 3)
    assign(a, b)
    put(a, ours, "1")
    put(b, theirs, "1")
    for asked in (a, b):
        status, seen = await asked.get("/drift")
        assert status == 200
        assert [found["subject"] for found in seen["versions"]] == sorted([f"{ours}@1", f"{theirs}@1"])
    assert (await a.get(f"/drift/{theirs}@1"))[1]["model"] == theirs
    await b.close()
    status, seen = await a.get("/drift")
    assert status == 200
    assert [found["subject"] for found in seen["versions"]] == [f"{ours}@1"]
    assert list(seen["trouble"]) == [b.url]


async def test_what_labels_say_is_in_the_list_and_on_models(make: Make) -> None:
    one = (await make().start()).own(*range(PARTITIONS))
    put(one, "churn", "2", labels=400)
    put(one, "churn", "3")
    _, seen = await one.get("/drift")
    told = {found["subject"]: found.get("quality") for found in seen["versions"]}
    assert told["churn@3"] is None
    figures = {"rows": 400, "accuracy": 0.75, "auc": 0.5, "ece": 0.05, "log_loss": LOSS}
    assert told["churn@2"]["figures"] == pytest.approx(figures, abs=1e-5)
    assert told["churn@2"]["first"] <= NOW <= told["churn@2"]["last"]
    status, page = await one.get("/drift/churn@2")
    assert (status, page["performance"]["kept"]) == (200, told["churn@2"])

    manifest: Any = SimpleNamespace(name="churn", feedback=object())
    one.app.engine.models.versions = lambda: [SimpleNamespace(manifest=manifest)]  # type: ignore[method-assign,list-item]
    assert (await one.get("/models"))[1]["quality"] == {"churn@2": told["churn@2"]}


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("/drift/churn", 404, "NAME@VERSION"),
        ("/drift/..%2F..@1", 404, "NAME@VERSION"),
        ("/drift/churn@9", 404, "no answer of churn@9"),
        ("/drift?x=1", 400, "no such parameter"),
    ],
)
async def test_what_is_not_there_is_said(make: Make, path: str, status: int, word: str) -> None:
    one = (await make().start()).own(*range(PARTITIONS))
    got, body = await one.get(path)
    told: dict[str, Any] = body
    assert got == status
    assert word in told["message"]
