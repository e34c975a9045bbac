"""Documents that are made to hurt: the time they may take, and that nothing else comes of them."""

from __future__ import annotations

import time

import pytest

from core.errors import DocumentError
from core.events import Document
from models.knowledge.block import LARGEST
from models.knowledge.making import Making
from models.knowledge.passage import estimate

pytestmark = pytest.mark.long

BOMBS = {
    "nested divs": "<html>" + "<div>" * 300_000,
    "nested lists": "<html>" + "<ul><li>a" * 20_000,
    "nested spans": "<html>" + "<span>" * 100_000 + "x",
    "unknown tags": "<html>" + "<x-y>" * 100_000 + "x",
    "nested tables": "<html>" + "<table><tr><td>" * 50_000,
    "many elements": "<html>" + "<i>a</i>" * 240_000,
    "many paragraphs": "<html>" + "<p>a</p>" * 240_000,
    "an endless comment": "<html><!--" * 100_000,
    "an endless attribute": "<html><a " + "x=1 " * 300_000 + ">",
    "nested quotes": ">" * 1_000_000,
    "a million brackets": "# a\n" + "[" * 1_000_000,
    "a list of everything": "# a\n" + "- a\n" * 19_000,
    "a table of nothing": "# a\n|a|b|\n|-|-|\n" + "|a|b|\n" * 19_000,
    "too many lines": "# a\n" + "a\n" * 30_000,
    "nothing but lines": "\n" * 1_000_000,
    "one long word": "x" * 1_000_000,
    "too large": "a" * (LARGEST + 1),
    "ten megabytes": "<html>" + "a b " * 2_500_000,
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_hostile_document_costs_seconds_and_nothing_else(bomb: str) -> None:
    began, refused = time.process_time(), None
    try:
        assert Making(Document("bomb", BOMBS[bomb]), 0, "", estimate, {}).contents(1_000_000)
    except DocumentError as error:
        refused = str(error)
    assert time.process_time() - began < 20
    assert refused is None or len(refused) < 200
