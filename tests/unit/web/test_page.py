"""The live page's files: whole, from here alone, and with nothing in them that a policy would have to allow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.web.worker import PARTITIONS, Start
from web import page

FOLDER = Path(page.__file__).parent / "page"


def test_every_file_of_the_page_is_served_and_no_other_is_named() -> None:
    assert {path.name for path in FOLDER.iterdir()} | {"chart.js"} == set(page.KINDS)


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_no_file_asks_another_host_or_needs_an_open_policy(path: Path) -> None:
    text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//cdn", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)
    if path.suffix == ".html":
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]+src=)", text)


async def test_the_page_and_its_files_are_open_where_a_token_is_asked_for_and_hold_no_data(start: Start) -> None:
    worker = (await start(web_token="all", worker_id="secret-name")).own(*range(PARTITIONS))
    worker.put("secret-key", "secret-value")
    kinds = {"/" if name == page.FIRST else f"/page/{name}": kind for name, kind in page.KINDS.items()}
    for path, kind in kinds.items():
        async with worker.client.get(path) as answer:
            assert answer.status == 200
            assert answer.content_type == kind
            assert "secret-" not in await answer.text()
    for path in ("/page/index.html", "/page/", "/page/../server.py", "/page/%2e%2e/server.py", "/overview"):
        assert (await worker.get(path))[0] == 401


async def test_the_page_allows_scripts_and_styles_from_here_alone(start: Start) -> None:
    worker = await start()
    async with worker.client.get("/") as answer:
        policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert {"script-src 'self'", "style-src 'self'", "connect-src 'self'"} <= set(policy.split("; "))


async def test_a_file_that_the_browser_has_is_not_sent_again(start: Start) -> None:
    worker = await start()
    async with worker.client.get("/page/chart.js") as answer:
        tag = answer.headers["ETag"]
        assert answer.headers["Content-Encoding"] == "gzip"
        assert b"Chart.js v4" in await answer.read()
    async with worker.client.get("/page/chart.js", headers={"If-None-Match": tag}) as answer:
        assert answer.status == 304
    async with worker.client.get("/page/chart.js", headers={"Accept-Encoding": "identity"}) as answer:
        assert "Content-Encoding" not in answer.headers
        assert b"Chart.js v4" in await answer.read()
