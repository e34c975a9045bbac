"""One Chromium for all tests of the page, and a page of its own for each, which must find nothing wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from tests.browser.chromium import given_chromium
from tests.unit.web.worker import Make, making

WITHIN_MS: Final = 20_000
"""For everything that the page is waited for: the machine may be busy."""


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def browser() -> AsyncIterator[Browser]:
    """Started once."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=given_chromium())
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="package")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A tab with storage of its own. Afterwards: no script failed, and the policy kept nothing from the page."""
    context = await browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB", timezone_id="UTC")
    page = await context.new_page()
    page.set_default_timeout(WITHIN_MS)
    expect.set_options(timeout=WITHIN_MS)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if "Security Policy" in message.text else None)
    yield page
    await context.close()
    assert not wrong


@pytest_asyncio.fixture(loop_scope="package")
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes workers that are not started yet, and ends them."""
    async with making(tmp_path) as make:
        yield make
