"""Whether what was found has to do with the question at all: a search always finds something."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from models.knowledge.query import Found, Query, words_of

WORDS: Final = 0.5
"""What the words of a question weigh beside its cosine; docs/knowledge.md has what led to it."""
WORDS_ALONE: Final = 0.6
"""Share of a question's words that a passage without a vector must have."""
_ENDING: Final = re.compile(r"(?<=\w{3})(?:ing|ed|es|s|e)$")


def relevance(query: Query, found: Sequence[Found]) -> float:
    """How well the best of the passages answers: its cosine to the question, and half the share of the question's words
    (but for stop words and endings) that stand in it. Between -1 and 1.5; -1 where nothing was found, or nobody knows
    cosines."""
    asked = stems(words_of(query.text))
    scores = [one.cosine + WORDS * _share(asked, one) for one in found if one.cosine is not None]
    return max(scores, default=-1.0)


def relevant(query: Query, found: Sequence[Found], least: float, *, vectors: bool) -> bool:
    """Whether it is worth an answer: with a relevance of that much. vectors: whether all passages have one; else those
    whose cosine nobody knows are told by words alone."""
    if relevance(query, found) >= least:
        return True
    asked = stems(words_of(query.text))
    return not vectors and any(one.cosine is None and _share(asked, one) >= WORDS_ALONE for one in found)


def stems(words: Iterable[str]) -> set[str]:
    """Words without the commonest English endings."""
    return {_ENDING.sub("", word) for word in words}


def _share(asked: set[str], one: Found) -> float:
    text = " ".join((one.title or "", *one.headings, one.text))
    return len(asked & stems(re.findall(r"\w+", text.lower()))) / max(1, len(asked))
