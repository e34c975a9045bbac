"""Plain text to blocks: paragraphs between empty lines, headings where a title is underlined."""

from __future__ import annotations

import re
from typing import Final

from models.knowledge.block import Block, Outline, check_blocks

_UNDERLINE: Final = re.compile(r"([=\-~^\"'*+#`:._])\1{2,}[ \t]*")
_LONGEST_TITLE: Final = 200


def blocks_of(text: str) -> list[Block]:
    """As reStructuredText has it: a line of one character repeated, as long as the title above it, makes that a
    heading (and may stand above it too); which character stands for which level is the order of their first use.
    Raises DocumentError for too many blocks."""
    outline, levels, found = Outline(), dict[str, int](), list[Block]()
    lines = text.splitlines(keepends=True)
    begin = at = 0
    part: list[str] = []

    def end() -> None:
        nonlocal part
        whole = "".join(part)
        if stripped := whole.strip():
            found.append(Block(outline.path, stripped, begin + len(whole) - len(whole.lstrip())))
        part = []

    number = 0
    while number < len(lines):
        line = lines[number]
        if (title := _title(lines, number)) is not None:
            over, words, sign = title
            end()
            outline.open(levels.setdefault(sign, len(levels) + 1), words)
            taken = 3 if over else 2
            at += sum(map(len, lines[number : number + taken]))
            number += taken
            begin = at
            continue
        if not line.strip():
            end()
        if not part:
            begin = at
        part.append(line)
        at += len(line)
        number += 1
    end()
    return check_blocks(found)


def _title(lines: list[str], number: int) -> tuple[bool, str, str] | None:
    """Whether it is overlined, the heading, and what says its level, where one begins at this line."""
    line = lines[number].rstrip()
    over = _UNDERLINE.fullmatch(line)
    if over and number + 2 < len(lines):
        words, under = lines[number + 1].strip(), lines[number + 2].rstrip()
        if words and under == line and len(line) >= len(words) and not _UNDERLINE.fullmatch(words):
            return True, words, 2 * line[0]
    if line and not line[0].isspace() and not over and len(line) <= _LONGEST_TITLE and number + 1 < len(lines):
        under = lines[number + 1].rstrip()
        if _UNDERLINE.fullmatch(under) and len(under) >= len(line):
            return False, line, under[0]
    return None
