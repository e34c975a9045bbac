"""What is asked of the knowledge, and what it answers."""

from __future__ import annotations

import re
from typing import Final

import msgspec

LONGEST: Final = 2_000
"""Characters of a question that count."""
TERMS: Final = 32
"""Different words of it that are looked up."""
_WORD: Final = re.compile(r"\w+", re.UNICODE)
STOP_WORDS: Final = frozenset(
    re.findall(
        r"\w+",
        "a about an and any are as at be been but by can could did do does for from had has have how i if in into is "
        "it its me my of on or our shall should so some such than that the their them then there these they this to "
        "us was we were what when where which who whom why will with would you your",
    )
)
"""They stand in every passage, and cost as many lookups."""


def words_of(text: str) -> list[str]:
    """The different words of a text, in lower case; stop words count where all are."""
    words = dict.fromkeys(word.lower() for word in _WORD.findall(text[:LONGEST]))
    return [word for word in words if word not in STOP_WORDS] or list(words)


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A question, and where it may be answered from."""

    text: str
    tenant: str | None = None
    """Whose knowledge alone."""
    tags: tuple[str, ...] = ()
    """Of documents that have all of these."""
    count: int = 8
    """Passages, at most."""

    def gist(self) -> str:
        """Its words in their order, without stop words, case and signs: two questions of one gist find nearly the same
        passages, though their answers may differ. Empty where only stop words are left."""
        words = (word.lower() for word in _WORD.findall(self.text[:LONGEST]))
        return " ".join(word for word in words if word not in STOP_WORDS)

    def words(self) -> list[str]:
        """Its different words, at most TERMS; stop words count where all are."""
        return words_of(self.text)[:TERMS]


class Found(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A passage that may answer."""

    passage: str
    """DOCUMENT#HASH: stays as long as its text does."""
    document: str
    title: str | None
    url: str | None
    headings: tuple[str, ...]
    text: str
    start: int
    end: int
    """Characters of the document's text."""
    score: float
    """Of the fusion: the ranks' reciprocals, weighted; says nothing beyond its order."""
    cosine: float | None = None
    """To the question; None where it was found by its words alone."""
    bm25: float | None = None
    """Larger is better; None where it was found by its meaning alone."""
    rerank: float | None = None
    """Of the reranker, whose order it is then: larger is better; None where none has judged it."""


class Hit(msgspec.Struct, frozen=True, array_like=True):
    """One of the passages that were found."""

    passage: str
    score: float
    cosine: float | None = None
    bm25: float | None = None
    rerank: float | None = None
