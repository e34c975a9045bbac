"""The page of a real worker, as events flow through it, until it dies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.kafka import Broker
from tests.rig import rig_on

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_it_shows_what_the_worker_does_and_that_it_died(page: Page, embedded: Broker, tmp_path: Path) -> None:
    with rig_on(embedded, tmp_path) as rig:
        worker = rig.worker("a").start().wait_log("No model is deployed yet")
        rig.deploy()
        await page.goto(worker.url)
        await expect(page.locator("#state")).to_have_text("Live, as a tells")
        with rig.sender(rate=200, sessions=5) as sender:
            await expect(page.locator("#rate")).to_have_text(re.compile(r"^[1-9]\d*$"))
            await expect(page.locator("#latency-note")).to_contain_text("p50")
            await expect(page.get_by_role("img", name=re.compile("^Confidence"))).to_have_attribute(
                "aria-label", re.compile(r"tally@1 now 0\.\d")
            )
            await expect(page.get_by_role("table", name="Models")).to_contain_text("tally")
            await page.get_by_label("Key").fill(sender.sent[0].session)
            await page.keyboard.press("Enter")
            await expect(page.locator("#found")).to_contain_text("count")

        worker.kill()
        await expect(page.get_by_role("alert")).to_contain_text("The worker doesn't answer.")
