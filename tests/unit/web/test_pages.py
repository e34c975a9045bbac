"""The application's own pages: behind the same token, never at a path of ours."""

from __future__ import annotations

from typing import Any

import pytest
from yarl import URL

from core.errors import UsageError
from tests.unit.web.worker import Make


async def test_a_page_of_fausts_is_served_behind_the_token(make: Make) -> None:
    worker = make(web_token="all")

    @worker.app.page("/hello/{name}")
    async def hello(view: Any, request: Any, name: str) -> Any:
        return view.json({"hello": name})

    await worker.start()
    assert (await worker.get("/hello/you"))[0] == 401
    assert await worker.get("/hello/you", Authorization="Bearer all") == (200, {"hello": "you"})


@pytest.mark.parametrize("path", ["/health%2Flive", "/%2Fhealth%2Flive", "/health/%6cive", "/health/live%2F"])
async def test_no_spelling_of_a_path_opens_a_page(make: Make, path: str) -> None:
    worker = make(web_token="all")

    @worker.app.page("/{anything}")
    async def anything(view: Any, request: Any, anything: str) -> Any:
        return view.json({"secret": anything})

    await worker.start()
    async with worker.client.get(URL(path, encoded=True)) as answer:
        assert answer.status == 401 or (await answer.json()) == {"live": True}


async def test_a_page_at_a_path_of_ours_is_refused(make: Make) -> None:
    worker = make()

    @worker.app.page("/tables")
    async def tables(view: Any, request: Any) -> Any:
        return view.json({})

    with pytest.raises(UsageError, match="/tables"):
        await worker.start()
