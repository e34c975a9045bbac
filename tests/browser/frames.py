"""Frames of /overview/watch as a worker sends them, for states that would take a whole group to bring about."""

from __future__ import annotations

import json
import time
from typing import Any

from playwright.async_api import Page, Route


def frame(*workers: dict[str, Any], partitions: int = 4, **more: Any) -> dict[str, Any]:
    """One frame of these workers."""
    now = round(time.time() * 1e3)
    return {"application": "shop", "now": now, "partitions": partitions, "workers": list(workers), "models": {}} | more


def worker(name: str, *partitions: int, here: bool = False, trouble: str | None = None, **said: Any) -> dict[str, Any]:
    """A worker that is fine, but for what is said here."""
    report = {
        "worker": name,
        "started": 0,
        "ready": True,
        "reasons": [],
        "warnings": [],
        "partitions": [{"number": n, "open": True, "lag": n, "reason": ""} for n in partitions],
        "models": {},
        "events": 0,
        "dead_letters": {},
        "samples": [],
    }
    url = f"http://127.0.0.1/{name}"
    return {"url": url, "here": here, "partitions": list(partitions), "trouble": trouble, "report": report | said}


def side(version: str, role: str, share: float | None, *on: str, **said: Any) -> dict[str, Any]:
    """A version beside others, of which nothing is counted but what is said here."""
    nothing = dict.fromkeys(("error", "confidence", "low", "agreement", "accuracy", "loss"))
    usual = {"version": version, "role": role, "share": share, "since": 1_764_374_400_000, "on": list(on)}
    return usual | {"figures": {}} | nothing | said


def alert(title: str, **said: Any) -> dict[str, Any]:
    """An alert of this moment."""
    usual = {"kind": "load_failed", "severity": "critical", "state": "opened", "subject": "churn@2"}
    return {"at": round(time.time() * 1e3), "id": title, "title": title} | usual | said


async def tell(page: Page, *frames: dict[str, Any]) -> None:
    """Makes the page believe that a worker sends these frames."""
    body = "".join(f"data: {json.dumps(one)}\n\n" for one in frames)

    async def answer(route: Route) -> None:
        await route.fulfill(body=body, content_type="text/event-stream")

    await page.route("**/overview/watch", answer)
