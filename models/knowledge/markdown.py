"""Markdown to blocks, by markdown-it: what stands in fenced code is no heading."""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from typing import Final

from markdown_it import MarkdownIt

from core.errors import DocumentError
from models.knowledge.block import Block, Outline, check_blocks

MOST_LINES: Final = 20_000
"""The worst that can stand in them takes the parser 4 s; a usual one of that length half a second."""


@cache
def _parser() -> MarkdownIt:
    """Blocks alone: what is inside of a paragraph stays as it is written, and costs no time."""
    return MarkdownIt("commonmark", {"maxNesting": 10}).enable("table").disable(["inline", "reference"])


def blocks_of(text: str) -> list[Block]:
    """Every outermost block as it is written, under its headings. Raises DocumentError."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")
    if len(lines) > MOST_LINES:
        raise DocumentError(f"the markdown has {len(lines):,} lines; {MOST_LINES:,} are allowed: send it in parts")
    begins = [0, *accumulate(len(line) + 1 for line in lines)]
    outline, found = Outline(), list[Block]()
    try:
        tokens = _parser().parse(text)
    except (RecursionError, IndexError) as error:
        raise DocumentError(f"the markdown can't be read: {error!r}") from error
    for number, token in enumerate(tokens):
        if token.level or token.map is None:
            continue
        if token.type == "heading_open":
            outline.open(int(token.tag[1]), tokens[number + 1].content)
            continue
        first, last = token.map
        raw = text[begins[first] : begins[last] if last < len(begins) else len(text)]
        if stripped := raw.strip():
            found.append(Block(outline.path, stripped, begins[first] + len(raw) - len(raw.lstrip())))
    return check_blocks(found)
