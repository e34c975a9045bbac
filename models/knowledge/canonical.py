"""When two questions are the same question: a key that leaves out what never changes a meaning, and nothing else."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_EDGES: Final = ".,;:!?…。！？、"
"""Signs that end a clause; what stands inside a word, and every other sign, belongs to it: 1.5, -5, 5 %, C++, f(x)."""
_GREETING: Final = frozenset(["hi", "hello", "hey"])
_THANKS: Final = (["please"], ["thanks"], ["thank", "you"])
_LINKS: Final = frozenset(["in", "by", "as", "and", "or", "for", "to", "please"])
"""Behind these a please is a word among others: "please in Spanish"."""
_ASKING: Final = frozenset(["what", "what's", "which", "who", "whom", "whose", "when", "where", "why", "how"])
"""With one of these in front a question mark says nothing new."""
_BEFORE_THE: Final = frozenset(["is", "are", "was", "were", "does", "do", "did", "me", "what", "which", "about"])
"""Only behind these `the` is left out: "out of question" is not "out of the question"."""
_SHORT: Final = {"what's": "what is", "where's": "where is", "how's": "how is", "that's": "that is"}
_PROPER: Final = frozenset(
    re.findall(
        r"\w+",
        "may march august polish turkey china chile jordan georgia mark bill will rose frank rich jack grace hope "
        "faith reading nice mobile bath cork apple amazon oracle shell target windows word go swift rust python java "
        "ruby",
    )
)
"""Words that a capital letter makes others: inside of a question it counts."""
_DIGIT: Final = re.compile(r"\d")


def canonical(text: str) -> str:
    """The key of a question: equal only where the answer must be.

    Case goes where it says nothing, clauses' signs, greetings and thanks, and `the` behind a verb. Word order, every
    other word, numbers, units (mW is not MW), signs and spelling stay.
    """
    words = _less_manners(unicodedata.normalize("NFC", text).split())
    bare = [word.rstrip(_EDGES) for word in words]
    asked = any({"?", "？"} & set(word[len(one) :]) for word, one in zip(words, bare, strict=True))
    bare = [word for word in bare if word]
    kept: list[str] = []
    for number, word in enumerate(bare):
        before = bare[number - 1] if number else ""
        folded = _SHORT.get(low := _folded(word, before, first=number == 0), low)
        follows = bare[number + 1] if number + 1 < len(bare) else ""
        if folded == "the" and kept and kept[-1].split()[-1] in _BEFORE_THE and follows[:1].islower():
            continue
        kept.append(folded)
    if asked and kept and kept[0].split()[0] not in _ASKING:
        kept.append("?")
    return " ".join(kept)


def _less_manners(words: list[str]) -> list[str]:
    """Without a greeting, a please in front, and thanks that a sign sets apart: "how to say thanks" keeps its own."""
    if words and words[0][-1] in _EDGES and words[0].rstrip(_EDGES).lower() in _GREETING:
        words = words[1:]
    if len(words) > 2 and words[0].lower() == "please" and words[1].lower() not in _LINKS:
        words = words[1:]
    for thanks in _THANKS:
        rest = words[: -len(thanks)]
        tail = [word.rstrip(_EDGES).lower() for word in words[-len(thanks) :]]
        if tail == thanks and rest and rest[-1][-1] in _EDGES:
            asked = "?" if "?" in words[-1] else ""
            return [*rest[:-1], rest[-1] + asked]
    return words


def _folded(word: str, before: str, *, first: bool) -> str:
    """In lower case where its case says nothing."""
    low = word.lower()
    capitalised = word[:1].isupper() and word[1:] == low[1:]
    if word == low:
        return low
    if not capitalised or (len(word) == 1 and word != "I"):
        return word  # US, mW, pH, iOS, vitamin C
    if _DIGIT.search(word) or _DIGIT.search(before):
        return word  # 5 Mb
    return word if low in _PROPER and not first else low
