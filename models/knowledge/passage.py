"""A document in passages: short enough for an embedder, long enough to answer, each with its headings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from models.knowledge.block import Block

BUDGET: Final = 160
"""Tokens of a passage with its headings. MiniLM-like embedders were trained on 128 and take 256."""
OVERLAP: Final = 32
"""Tokens that a passage may repeat of the one before, so that nothing is cut off from what it belongs to."""
MOST_PATH: Final = 48
"""Tokens of them that title and headings may take."""
_SENTENCE: Final = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])|\n+")
_WORD: Final = re.compile(r"\S+\s*")

Count = Callable[[Sequence[str]], list[int]]
"""Tokens of each text."""


class Passage(msgspec.Struct, frozen=True, array_like=True):
    """What is found, cited and put into prompts."""

    headings: tuple[str, ...]
    text: str
    start: int
    end: int
    """Characters of the document's text (models/knowledge/block.py) that it comes from."""

    def embedded(self, title: str | None) -> str:
        """What its vector is made of: a passage alone doesn't say what it is about."""
        return f"{path_of(title, self.headings)}\n{self.text}".strip()

    def hash(self, title: str | None) -> bytes:
        """16 bytes: equal where the vector would be."""
        return blake2b(self.embedded(title).encode(), digest_size=16).digest()


class _Unit(NamedTuple):
    """A sentence, a line, or a part of a longer one."""

    text: str
    start: int
    tokens: int
    lead: str
    """What stands between it and the one before."""


def path_of(title: str | None, headings: Sequence[str]) -> str:
    """A title and the headings below it, each once."""
    return " > ".join(dict.fromkeys(filter(None, (title, *headings))))


def estimate(texts: Sequence[str]) -> list[int]:
    """Tokens, where there is no tokenizer to ask: 4 characters are one, and a word is one at least."""
    return [max(len(text) // 4, len(text.split())) for text in texts]


def split(
    title: str | None, blocks: Sequence[Block], count: Count = estimate, budget: int = BUDGET, overlap: int = OVERLAP
) -> list[Passage]:
    """Passages in the order of the document. None has more tokens than the budget, title and headings included, unless
    those take most of it; none holds text of two sections; all text is in one."""
    passages: list[Passage] = []
    for section in _sections(blocks):
        (path,) = count([path_of(title, section[0].headings)])
        room = budget - min(path, MOST_PATH)
        passages += _packed(section[0].headings, _units(section, count, room), room, overlap)
    return passages


def _sections(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Neighbours under the same headings."""
    section: list[Block] = []
    for block in blocks:
        if section and block.headings != section[0].headings:
            yield section
            section = []
        section.append(block)
    if section:
        yield section


def _units(section: Sequence[Block], count: Count, room: int) -> list[_Unit]:
    pieces = [(text, block.start + at, lead) for block in section for at, text, lead in sentences(block.text)]
    units: list[_Unit] = []
    for (text, start, lead), tokens in zip(pieces, count([text for text, _, _ in pieces]), strict=True):
        units += [_Unit(text, start, tokens, lead)] if tokens <= room else _parts(text, start, lead, count, room)
    return units


def sentences(text: str) -> Iterator[tuple[int, str, str]]:
    """Of each sentence, or line, where it begins, itself, and what stands before it."""
    begin, lead = 0, "\n\n"
    for gap in _SENTENCE.finditer(text):
        if gap.start() > begin:
            yield begin, text[begin : gap.start()], lead
            lead = ""
        lead, begin = lead + gap[0], gap.end()
    if begin < len(text):
        yield begin, text[begin:], lead


def _parts(text: str, start: int, lead: str, count: Count, room: int) -> list[_Unit]:
    """What is longer than a passage, in pieces of words; a word that is longer itself, in pieces of characters."""
    words = [
        (found.start() + at, found[0][at : at + room])
        for found in _WORD.finditer(text)
        for at in range(0, len(found[0]), room)
    ]
    units: list[_Unit] = []
    begin, end, total = 0, 0, 0
    for (at, word), tokens in zip(words, count([word for _, word in words]), strict=True):
        if total and total + tokens > room:
            units.append(_Unit(text[begin:end], start + begin, total, "" if units else lead))
            begin, total = at, 0
        end, total = at + len(word), total + tokens
    units.append(_Unit(text[begin:end], start + begin, total, "" if units else lead))
    return units


def _packed(headings: tuple[str, ...], units: Sequence[_Unit], room: int, overlap: int) -> Iterator[Passage]:
    begin = 0
    while begin < len(units):
        end, total = begin, 0
        while end < len(units) and (end == begin or total + units[end].tokens <= room):
            total += units[end].tokens
            end += 1
        taken = units[begin:end]
        yield Passage(headings, _joined(taken), taken[0].start, taken[-1].start + len(taken[-1].text))
        if end == len(units):
            return
        following, repeated = end, 0
        while following - 1 > begin and repeated + units[following - 1].tokens <= min(
            overlap, room - units[end].tokens
        ):
            following -= 1
            repeated += units[following].tokens
        begin = following


def _joined(units: Sequence[_Unit]) -> str:
    """As it stood there."""
    return (units[0].text + "".join(unit.lead + unit.text for unit in units[1:])).strip()
