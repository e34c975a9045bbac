"""A document's text to blocks, by its format; where that isn't said, by what it looks like."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final, Literal

from core.events import Document
from models.knowledge import html, markdown, plain
from models.knowledge.block import Block, check_size

Format = Literal["text", "markdown", "html"]
_PAGE: Final = re.compile(r"\s*(?:<!--.*?-->\s*)?<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL)
_HEADING: Final = re.compile(r"^#{1,6} \S", re.MULTILINE)
_CONTROLS: Final = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 127, 0xFEFF], None)
"""Characters that no text has; a NUL ends a text in many a library."""


def read(document: Document) -> tuple[str | None, list[Block]]:
    """Its title and its blocks. Raises DocumentError for what is too large, too deep, or falls into too many pieces."""
    check_size(document.text)
    text = document.text.translate(_CONTROLS)
    match document.format or look(document.url, text):
        case "html":
            title, blocks = html.blocks_of(text)
            return document.title or title, blocks
        case "markdown":
            return document.title, markdown.blocks_of(text)
        case _:
            return document.title, plain.blocks_of(text)


def look(url: str | None, text: str) -> Format:
    """What format a text seems to have."""
    path = (url or "").partition("?")[0].partition("#")[0].lower()
    if path.endswith((".html", ".htm", ".xhtml")) or _PAGE.match(text[:2000]):
        return "html"
    if path.endswith((".md", ".markdown")) or _HEADING.search(text[:20_000]):
        return "markdown"
    return "text"


def content_of(document: Document) -> str:
    """A hash of what its passages are made of: a document that only changes its tags isn't read again."""
    parts = "\0".join((document.title or "", document.format or look(document.url, document.text), document.text))
    return blake2b(parts.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
