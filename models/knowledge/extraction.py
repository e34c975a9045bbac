"""An answer that is nobody's words but a document's: the sentences of a passage that are nearest to the question."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.knowledge.query import Found, words_of

NEAR: Final = 0.1
"""How much farther from the question than the nearest sentence its neighbours may be, to be quoted with it."""
MOST: Final = 3
"""Sentences of an answer."""
FEW: Final = 4
"""Words that a sentence must have, or an end: less is a heading, or a mark of the markup."""
_END: Final = re.compile(
    r"(?<=[.!?…])[\"'”’)\]]*\s+(?=[\"'“‘(\[`*:<]*[^\W_a-z])|(?<=[。！？])|\n\s*\n|\n(?=\s*(?:[-*•+]|\d+[.)])\s)"
)
"""Ends of sentences, paragraphs and items of lists; a line that is merely full ends nothing."""
_MARKUP: Final = (".. ", "```", "<!--")
"""What begins so tells a renderer something, not a reader."""
_ENDS: Final = (".", "!", "?", "。", "！", "？")


class Sentence(NamedTuple):
    """One of a passage."""

    text: str
    start: int
    """Character in the passage's text."""


class Extract(NamedTuple):
    """What is quoted."""

    text: str
    start: int
    end: int
    """Characters of the document's text; of the whole passage, where its text isn't the document's own letters."""


def parted(one: Found) -> list[Sentence]:
    """The sentences of a passage that say something."""
    parts = [part for part in _sentences(one.text) if not part.text.startswith(_MARKUP)]
    return [part for part in parts if len(words := part.text.split()) >= FEW or words[-1].endswith(_ENDS)]


def nearness(question: str, parts: Sequence[Sentence], cosines: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """(n,): how near each sentence is to the question: its cosine, and without an embedder the share of the question's
    words that it has."""
    if cosines is not None:
        return cosines
    asked = set(words_of(question))
    shares = [len(asked & set(words_of(part.text))) / max(1, len(asked)) for part in parts]
    return np.array(shares, np.float32)


def extract(one: Found, parts: Sequence[Sentence], near: NDArray[np.float32]) -> Extract:
    """The sentence nearest to the question, with those right beside it that are nearly as near. near: (n,), n > 0."""
    best = int(near.argmax())
    first = last = best
    least = near[best] - NEAR
    while last - first + 1 < MOST:
        if last + 1 < len(parts) and (near[last + 1] >= least or parts[last].text.endswith(":")):
            last += 1
        elif first > 0 and near[first - 1] >= least:
            first -= 1
        else:
            break
    begin, end = parts[first].start, parts[last].start + len(parts[last].text)
    text = one.text[begin:end]
    if len(one.text) != one.end - one.start:
        return Extract(text, one.start, one.end)
    return Extract(text, one.start + begin, one.start + end)


def _sentences(text: str) -> Iterator[Sentence]:
    begin = 0
    for gap in (*_END.finditer(text), None):
        end = len(text) if gap is None else gap.start()
        if part := text[begin:end].strip():
            yield Sentence(part, begin + text[begin:end].index(part))
        begin = len(text) if gap is None else gap.end()
