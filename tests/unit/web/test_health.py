"""Health: ready says in words what is missing."""

from __future__ import annotations

from typing import Any, cast

from tests.unit.web.worker import Start


async def test_ready_says_what_is_missing_in_words(start: Start) -> None:
    worker = await start()
    status, body = await worker.get("/health/ready")
    assert status == 503
    assert body["ready"] is False
    assert any("deployments" in reason for reason in body["reasons"])
    assert any("broker" in reason for reason in body["reasons"])

    worker.app.engine.ready.set()
    worker.app.engine.consumer = cast(Any, object())
    _, body = await worker.get("/health/ready")
    assert any("publish" in reason and "control" in reason for reason in body["reasons"])
    assert any("group" in reason for reason in body["reasons"])

    worker.own(2)
    worker.app.engine.tasks[2].open = False
    worker.app.engine.tasks[2].reason = "restoring its tables"
    _, body = await worker.get("/health/ready")
    assert "partition 2 is not open: restoring its tables" in body["reasons"]


async def test_a_worker_that_is_ending_is_neither_alive_nor_ready(start: Start) -> None:
    worker = await start()
    worker.app.engine.dying = RuntimeError("the password is hush")
    for path in ("/health/live", "/health/ready"):
        status, body = await worker.get(path)
        assert status == 503
        assert "RuntimeError" in str(body)
        assert "hush" not in str(body)
