"""The live page in a real Chromium: a person's eyes, keyboard and screen reader."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, Route, expect

from engine.publisher import partition_of
from tests.browser.frames import alert, frame, side, tell, worker
from tests.unit.web.detectors import put
from tests.unit.web.test_neighbours import assign
from tests.unit.web.worker import PARTITIONS, TABLES, Make, Worker

pytestmark = pytest.mark.asyncio(loop_scope="package")

SCREENS: list[tuple[Literal["light", "dark"], int]] = [("light", 320), ("dark", 1280)]
MARKUP = "<img src=x onerror=alert(1)>"


async def opened(page: Page, one: Worker) -> None:
    """Opens the page of a worker, and waits until it lives."""
    await page.goto(one.url)
    await expect(page.get_by_role("status").first).to_have_text(re.compile("Live, as .+ tells"))


@asynccontextmanager
async def busy(one: Worker) -> AsyncIterator[None]:
    """The worker commits some two hundred events a second meanwhile."""

    async def work() -> None:
        while True:
            one.work(10)
            await asyncio.sleep(0.05)

    working = asyncio.create_task(work())
    try:
        yield
    finally:
        working.cancel()


async def test_it_shows_a_moving_rate_and_asks_nobody_but_its_worker(page: Page, make: Make) -> None:
    one = (await make().start()).own(*range(PARTITIONS))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await opened(page, one)
    rate, chart = page.locator("#rate"), page.get_by_role("img", name=re.compile("^Events per second"))
    async with busy(one):
        await expect(rate).to_have_text(re.compile(r"^[1-9]\d*$"))
        await expect(page.locator("#latency-note")).to_have_text(re.compile("p50 .+ ms"))
        await expect(chart).to_have_attribute("aria-label", re.compile(r"committed now [1-9]"))
    await expect(rate).to_have_text("0")
    await expect(page.locator("#open")).to_have_text("4 of 4")
    assert all(url.startswith(one.url) for url in asked)


async def test_a_key_is_looked_up_by_keyboard_and_what_it_holds_stays_text(page: Page, make: Make) -> None:
    one = (await make().start()).own(0)
    ours, theirs = ([key for key in map(str, range(20)) if partition_of(key.encode(), PARTITIONS) == n] for n in (0, 1))
    nasty = next(key for key in (f"ä/%2F?#{n}" for n in range(50)) if partition_of(key.encode(), PARTITIONS) == 0)
    one.put(ours[0], MARKUP)
    one.put(nasty, "found too")
    await opened(page, one)
    table, key, found = page.get_by_role("combobox", name="Table"), page.get_by_label("Key"), page.locator("#found")
    await expect(table.get_by_role("option")).to_have_count(len(TABLES))
    await table.focus()
    for text in ("notes", ours[0]):
        await page.keyboard.type(text)
        await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(found).to_contain_text(MARKUP)
    await expect(found.locator("img")).to_have_count(0)
    for asked, words in ((nasty, "found too"), (ours[1], "has no value for this key"), (theirs[0], "ask again")):
        await key.fill(asked)
        await key.press("Enter")
        await expect(found).to_contain_text(words)


async def test_a_token_is_asked_for_kept_for_the_tab_and_never_in_an_address(page: Page, make: Make) -> None:
    one = (await make(web_token="all", web_read_token="lesen-ü").start()).own(0)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.goto(one.url)
    dialog = page.get_by_role("dialog", name="This worker asks for a token")
    await expect(dialog.get_by_label("Token")).to_be_focused()
    await page.keyboard.type("wrong-token")
    await page.keyboard.press("Enter")
    await expect(dialog).to_contain_text("It doesn't know the token that was given")
    await dialog.get_by_label("Token").fill("lesen-ü")
    await dialog.get_by_role("button", name="Go on").click()
    await expect(dialog).to_be_hidden()
    await expect(page.locator("#state")).to_contain_text("Live")
    await page.reload()
    await expect(page.locator("#state")).to_contain_text("Live")
    await expect(dialog).to_be_hidden()
    assert not any("lesen" in url or "wrong-token" in url for url in asked)


async def test_a_worker_that_goes_away_is_told_in_words_and_found_again_by_itself(page: Page, make: Make) -> None:
    first = (await make().start()).own(0, 1)
    await opened(page, first)
    trouble = page.get_by_role("alert")
    await expect(trouble).to_be_hidden()
    await first.close()
    await expect(trouble).to_contain_text(re.compile("The worker (has ended the connection|doesn't answer)"))
    await expect(page.locator("#state")).to_have_text("Not connected")
    await expect(page.locator("#open")).to_have_text("2 of 4")  # the last that it said
    await page.get_by_label("Key").fill("k")
    await page.get_by_role("button", name="Look up").click()
    await expect(page.locator("#found")).to_contain_text("The worker doesn't answer")
    (await make(web_port=first.app.settings.web_port).start()).own(0, 1, 2)
    await expect(trouble).to_be_hidden()
    await expect(page.locator("#open")).to_have_text("3 of 4")


async def test_a_worker_that_falls_silent_is_told_in_words(page: Page, make: Make) -> None:
    one = await make().start()
    await page.clock.install()

    async def hang(route: Route) -> None:
        del route  # never answered

    await page.route("**/overview/watch", hang)
    await page.goto(one.url)
    await page.clock.fast_forward(7000)
    await expect(page.get_by_role("alert")).to_contain_text("The worker has said nothing for six seconds.")
    await page.unroute("**/overview/watch")
    await expect(page.locator("#state")).to_contain_text("Live")


async def test_the_other_workers_are_there_too_and_one_that_does_not_answer_is_named(page: Page, make: Make) -> None:
    first, second = (await make().start()).own(0, 1), (await make().start()).own(2, 3)
    assign(first, second)
    await opened(page, first)
    workers = page.get_by_role("table", name="Workers")
    await expect(page.locator("#open")).to_have_text("4 of 4")
    await expect(workers.get_by_role("row")).to_have_count(3)
    async with busy(second):
        await expect(page.locator("#rate")).to_have_text(re.compile(r"^[1-9]\d*$"))
    await second.close()
    await expect(workers).to_contain_text("does not answer")
    await expect(page.get_by_role("table", name="Lag by partition")).to_contain_text("its worker does not answer")
    await expect(page.locator("#open")).to_have_text("2 of 4")


MODELS: dict[str, Any] = {
    "churn": {
        "revision": 7,
        "frozen": True,
        "behind": ["c"],
        "sides": [
            side("2", "active", 0.9, "a", error=0.0, accuracy=0.812, figures={"labelled": 1234}),
            side("3", "canary", 0.1, "a", error=0.004, agreement=0.985, figures={"answers": 1500, "compared": 1200}),
            side("4", "shadow", None, "a"),
        ],
    }
}
TOLD: dict[str, Any] = {
    "churn": {"revision": 7, "error": "churn@5: " + MARKUP, "loading": {"version": "4", "stage": "warming"}}
}


async def test_a_drift_is_seen_and_acknowledged_by_somebody_with_a_name(page: Page, make: Make) -> None:
    one = (await make().start()).own(*range(PARTITIONS))
    put(one, "churn", "2", ill=True, labels=400)
    asked: list[Any] = []

    async def answer(route: Route) -> None:
        asked.append(route.request.post_data_json)
        await route.fulfill(status=202, json={})

    await page.route("**/models/churn", answer)
    await opened(page, one)
    drift, said = page.get_by_role("table", name="Drift"), page.locator("#drift-said")
    await expect(drift).to_contain_text("drift since")
    await expect(drift).to_contain_text(
        "accuracy 0.750, AUC 0.500, calibration error 0.050, log loss 0.570 of 400 labels"
    )
    await page.get_by_role("button", name="churn@2", exact=True).click()
    await expect(page.get_by_role("img", name=re.compile("^Confidence of each"))).to_be_visible()
    await expect(page.get_by_role("img", name=re.compile("^How confidence is spread"))).to_be_visible()
    acknowledge = page.get_by_role("button", name="acknowledge what is wrong with churn@2")
    await acknowledge.click()
    await expect(said).to_have_text("Say who you are first.")
    await page.get_by_label("Your name").fill("anna")
    await acknowledge.click()
    await expect(said).to_have_text("Asked for: acknowledge churn@2.")
    assert asked == [{"action": "acknowledge", "version": "2", "author": "anna"}]
    detectors = page.get_by_role("table", name="Detectors of churn@2")
    for words in ("2,000 answers, mean 0.8", "in a row differ", "ADWIN", "told below"):
        await expect(detectors).to_contain_text(words)


async def test_a_single_alert_is_resolved_by_somebody_with_a_name(page: Page, make: Make) -> None:
    one = await make().start()
    asked: list[Any] = []

    async def answer(route: Route) -> None:
        asked.append(route.request.post_data_json)
        await route.fulfill(status=202, json={})

    await page.route("**/models/churn", answer)
    told = [
        alert("it drifts", kind="drift", id="a/1"),
        alert("it was", kind="label_drift", state="resolved"),
        alert("no"),
    ]
    await tell(page, frame(worker("a", 0, here=True), alerts=told, alerts_trouble=None))
    await page.goto(one.url)
    await page.get_by_label("Your name").fill("anna")
    await expect(page.locator("#alerts").get_by_role("button")).to_have_count(2)
    await page.get_by_role("button", name="resolve drift of churn@2").click()
    await expect(page.locator("#drift-said")).to_have_text("Asked for: resolve churn@2.")
    assert asked == [{"action": "resolve", "version": "2", "author": "anna", "alert": "a/1"}]
    assert (await Axe().run(page)).violations_count == 0


async def test_what_is_wrong_is_shown_in_words(page: Page, make: Make) -> None:
    one = await make().start()
    alerts = [alert(f"{MARKUP} went wrong"), alert("fewer are sure", kind="drift_confirmed", severity="warning")]
    sample = {"t": alerts[0]["at"] // 1000, "rate": 5.0, "confidence": {"churn@2": {"count": 4, "mean": 0.5, "low": 1}}}
    sure = worker("a", 0, 1, here=True, models=TOLD, dead_letters={"DecodeError": 1200}, samples=[sample])
    behind = worker("b", 2, trouble="does not answer (TimeoutError)", models={})
    await tell(page, frame(sure, behind, models=MODELS, alerts=alerts, alerts_trouble=None))
    await page.goto(one.url)
    await expect(page.locator("#alerts")).to_contain_text(MARKUP)
    await expect(page.locator("main img")).to_have_count(0)
    await expect(page.get_by_role("img", name=re.compile("Confidence.*Marked: drift confirmed at"))).to_be_visible()
    await expect(page.locator("#workers-count")).to_have_text("1 of 2")
    await expect(page.get_by_role("table", name="Dead letters by reason")).to_contain_text("1,200")
    await expect(page.get_by_role("table", name="Lag by partition")).to_contain_text("no worker has it")
    models = page.get_by_role("table", name="Models")
    await expect(models.get_by_role("row")).to_have_count(4)
    for words in ("81.2%", "of 1,234"):
        await expect(models.get_by_role("row").nth(1)).to_contain_text(words)
    canary = models.get_by_role("row").nth(2)
    for words in ("frozen", "canary", "10%", "0.4%", "98.5%", "of 1,200"):
        await expect(canary).to_contain_text(words)
    troubles = page.locator("#model-troubles")
    await expect(troubles).to_contain_text("churn on a: churn@5: " + MARKUP)
    await expect(troubles).to_contain_text("a is loading churn@4: warming")
    await expect(troubles).to_contain_text("churn: c not at revision 7 yet")
    assert (await Axe().run(page)).violations_count == 0


async def test_it_is_for_everybody(page: Page, make: Make) -> None:
    """As far as axe-core can tell: names, roles, contrast, landmarks; and nothing is wider than a narrow screen."""
    one = (await make().start()).own(*range(PARTITIONS))
    one.put("ann", MARKUP * 20)
    await opened(page, one)
    await page.get_by_role("combobox", name="Table").select_option("notes")
    await page.get_by_label("Key").fill("ann")
    await page.keyboard.press("Enter")
    await expect(page.locator("#found")).to_contain_text(MARKUP)
    await page.get_by_text("As a table").first.click()
    for scheme, width in SCREENS:
        await page.set_viewport_size({"width": width, "height": 900})
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        results = await Axe().run(page)
        assert results.violations_count == 0, results.generate_report()
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
