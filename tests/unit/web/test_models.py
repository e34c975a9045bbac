"""What a worker tells of versions on trial, by HTTP: to programs, to the live page, to Prometheus."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from core.events import Canary, Deployment
from tests.unit.graphs import folder, linear
from tests.unit.web.test_openapi import document, schema
from tests.unit.web.worker import Start, Worker


@pytest.fixture
async def worker(start: Start) -> Worker:
    """churn@1 answers, 2 is its canary, 3 its shadow, and it is frozen; 1 has answered three events."""
    worker = await start(worker_id="a")
    models = worker.app.engine.models
    for version in ("1", "2", "3"):
        folder(worker.folder / "store", linear(w=0.0, b=0.3), version=version)
    trial = Canary(version="2", share=0.25)
    await models.converge(
        Deployment(model="churn", revision=7, active="1", canary=trial, shadow=("3",), frozen=True, since=0)
    )
    with models.using("churn") as active:
        await active.predict({"X": np.zeros((3, 1), np.float32)})
    return worker


async def test_models_are_told_in_the_form_that_the_document_has(worker: Worker) -> None:
    told = await document(worker)
    for path in ("/models", "/overview", "/overview/here"):
        _, body = await worker.get(path)
        validator = jsonschema_rs.validator_for(schema(told, path, "200"))
        assert not [error.message for error in validator.iter_errors(body)], path
    model = (await worker.get("/models"))[1]["models"]["churn"]
    assert model == worker.app.engine.models.status()["churn"]
    assert model["figures"]["answers"] == 3
    status: Any = told["components"]["schemas"]["Status"]
    assert model.keys() <= status["properties"].keys()
    assert {"canary", "shadow", "frozen", "loading", "draining", "error"} <= status["properties"].keys()


async def test_the_overview_has_the_versions_side_by_side(worker: Worker) -> None:
    _, frame = await worker.get("/overview")
    churn = frame["models"]["churn"]
    assert (churn["revision"], churn["frozen"], churn["behind"]) == (7, True, [])
    assert [(one["role"], one["version"], one["share"], one["on"]) for one in churn["sides"]] == [
        ("active", "1", 0.75, ["a"]),
        ("canary", "2", 0.25, ["a"]),
        ("shadow", "3", None, ["a"]),
    ]
    assert churn["sides"][0]["error"] == 0
    assert churn["sides"][1]["agreement"] is None


async def test_numbers_tell_roles_shares_freezes_and_what_limits_have_ended(worker: Worker) -> None:
    worker.app.engine.models.ended["churn", "rollback"] += 1
    async with worker.client.get("/metrics") as answer:
        text = await answer.text()
    found = {
        (sample.name.removeprefix("homunculus_"), frozenset(sample.labels.values())): sample.value
        for metric in parse(text)
        for sample in metric.samples
    }
    expected = {
        ("model_events_total", "churn", "1", "active", "answered"): 3,
        ("model_events_total", "churn", "2", "canary", "failed"): 0,
        ("model_compared_events_total", "churn", "3", "shadow", "agreed"): 0,
        ("canary_share", "churn"): 0.25,
        ("model_frozen", "churn"): 1,
        ("model_load_failed", "churn"): 0,
        ("canaries_ended_total", "churn", "rollback"): 1,
        ("canaries_ended_total", "churn", "promote"): 0,
    }
    for (name, *labels), value in expected.items():
        assert found[name, frozenset(labels)] == value, (name, labels)


async def test_a_request_by_http_brings_no_figures_of_its_own(worker: Worker) -> None:
    body = {"action": "rollback", "figures": {"answers": 1}}
    async with worker.client.post("/models/churn", json=body) as answer:
        assert answer.status == 400
