"""A document as it is read: blocks of text, each under its headings."""

from __future__ import annotations

from typing import Final, NamedTuple

from core.errors import DocumentError

LARGEST: Final = 2_000_000
"""Characters of a document; more is no page that anybody reads."""
MOST_BLOCKS: Final = 20_000
MOST_HEADINGS: Final = 6
"""Levels of them."""
LONGEST_HEADING: Final = 200
"""Characters of a heading that are kept."""


class Block(NamedTuple):
    """A paragraph, a list, a table or a piece of code."""

    headings: tuple[str, ...]
    """From the outermost on."""
    text: str
    start: int
    """Of its first character in the document's text: that of plain text and markdown as they came, that of a web page
    as it is read."""


class Outline:
    """The headings above the block that comes next."""

    def __init__(self) -> None:
        self._levels: list[tuple[int, str]] = []

    def open(self, level: int, heading: str) -> None:
        """A heading of a level, 1 the outermost: it ends those of its own level and of deeper ones."""
        self._levels = [one for one in self._levels if one[0] < level]
        if heading := " ".join(heading.split())[:LONGEST_HEADING]:
            self._levels.append((level, heading))

    @property
    def path(self) -> tuple[str, ...]:
        """From the outermost on."""
        return tuple(heading for _, heading in self._levels[:MOST_HEADINGS])


def check_size(text: str) -> None:
    """Raises DocumentError for a document that is too large."""
    if len(text) > LARGEST:
        raise DocumentError(f"the document has {len(text):,} characters; {LARGEST:,} are allowed: send it in parts")


def check_blocks(blocks: list[Block]) -> list[Block]:
    """Raises DocumentError for a document that falls into too many pieces."""
    if len(blocks) > MOST_BLOCKS:
        raise DocumentError(f"the document falls into more than {MOST_BLOCKS:,} pieces: send it in parts")
    return blocks
