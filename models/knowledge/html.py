"""Web pages to blocks, by lexbor: what a reader sees, without scripts, styles and navigation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from selectolax.lexbor import LexborHTMLParser, LexborNode

from core.errors import DocumentError
from models.knowledge.block import Block, Outline, check_blocks

UNSEEN: Final = frozenset(
    re.findall(
        r"\w+",
        "head script style template noscript nav svg math iframe object canvas form button select textarea",
    )
)
HEADINGS: Final = {f"h{level}": level for level in range(1, 7)}
HOLDERS: Final = frozenset(
    re.findall(
        r"\w+",
        "address article aside blockquote details dialog div dl fieldset figure footer header main ol pre section "
        "table ul",
    )
)
"""Elements that have to be ended; others that end each other aren't nested, whatever their tags look like."""
BLOCKS: Final = HOLDERS | frozenset(
    re.findall(r"\w+", "body dd dt figcaption hr html li p summary td th tr caption tbody thead tfoot")
)
MOST_NODES: Final = 200_000
DEEPEST: Final = 500
"""Nested ones: no page has a tenth of it, and what is deeper is there to hurt."""
_TAG: Final = re.compile(r"<(?:(/?)([a-zA-Z][a-zA-Z0-9]*)|!--)")
_SKIPPED: Final = {"!--": "-->", "script": "</script", "style": "</style"}
"""What is no markup inside -> how it ends."""


def blocks_of(html: str) -> tuple[str | None, list[Block]]:
    """The page's title, and what is read of it. Raises DocumentError."""
    if (depth := _depth(html)) > DEEPEST:
        raise DocumentError(f"the page's tags are nested {depth:,} deep; {DEEPEST:,} are allowed")
    tree = LexborHTMLParser(html)
    root, title = tree.root, tree.css_first("title")
    outline, found, at = Outline(), list[Block](), 0
    part: list[str] = []
    heading: int | None = None

    def end() -> None:
        nonlocal at, heading
        words = "".join(part).strip() if heading is None else " ".join("".join(part).split())
        part.clear()
        if heading is not None:
            outline.open(heading, words)
            heading = None
        elif words:
            found.append(Block(outline.path, words, at))
            at += len(words) + 1
        if len(found) > MOST_NODES:
            raise DocumentError("the page falls into too many pieces")

    for node, opens, pre in _walk(root):
        tag = str(node.tag)
        if tag == "-text":
            text = str(node.text_content or "")
            part.append(text if pre else _flowing(text, part))
        elif tag in HEADINGS:
            end()
            heading = HEADINGS[tag] if opens else None
        elif tag in BLOCKS:
            end()
        elif tag == "br" and opens:
            part.append("\n")
    end()
    named = None if title is None else " ".join(str(title.text()).split())[:1000] or None
    return named, check_blocks(found)


def _flowing(text: str, before: list[str]) -> str:
    """As a browser shows it: white space is one space, and none at a beginning."""
    words = " ".join(text.split())
    if not words:
        return " " if text and before and not before[-1][-1:].isspace() else ""
    lead = " " if text[0].isspace() and before and not before[-1][-1:].isspace() else ""
    return f"{lead}{words}{' ' if text[-1].isspace() else ''}"


def _depth(html: str) -> int:
    """How deep elements that hold others are nested, told from the tags alone: lexbor's time is the square of it."""
    deepest = depth = at = 0
    while (found := _TAG.search(html, at)) is not None:
        at, tag = found.end(), found[2].lower() if found[2] else "!--"
        if tag in _SKIPPED:
            at = html.find(_SKIPPED[tag], at)
            if at < 0:
                break
        elif tag in HOLDERS:
            depth = max(0, depth - 1) if found[1] else depth + 1
            deepest = max(deepest, depth)
    return deepest


def _walk(root: LexborNode | None) -> Iterator[tuple[LexborNode, bool, bool]]:
    """Nodes that are seen as they begin (True) and end (False), and whether they are in preformatted text; without
    recursion."""
    stack: list[tuple[LexborNode, bool, bool]] = [] if root is None else [(root, True, False)]
    seen = 0
    while stack:
        node, opens, pre = stack.pop()
        tag = str(node.tag)
        if not opens:
            yield node, False, pre
            continue
        seen += 1
        if seen > MOST_NODES:
            raise DocumentError(f"the page has more than {MOST_NODES:,} elements and texts")
        if tag in UNSEEN:
            continue
        yield node, True, pre
        if tag == "-text":
            continue
        stack.append((node, False, pre))
        inside = pre or tag == "pre"
        children = []
        child = node.child
        while child is not None:
            children.append((child, True, inside))
            child = child.next
        stack.extend(reversed(children))
