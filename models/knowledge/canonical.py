"""When two questions are the same question: a key that leaves out what never changes a meaning, and nothing else."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from models.knowledge.query import STOP_WORDS

_ENDS: Final = ".,;:!?…。！？、"
"""Signs that may close a question; inside of it each belongs to it: "No, commits are lost" is not "No commits are
lost"."""
_SENTENCE: Final = ".;!?…。！？"
_GREETING: Final = frozenset(["hi", "hello", "hey"])
_THANKS: Final = (["please"], ["thanks"], ["thank", "you"])
_ASKING: Final = frozenset(["what", "which", "who", "whom", "whose", "when", "where", "why", "how"])
_VERBS: Final = frozenset(
    re.findall(r"\w+", "is are was were am do does did can could will would shall should has have had may might must")
)
_ORDERS: Final = frozenset(re.findall(r"\w+", "explain tell show list describe give help find restart summarize"))
"""What a please in front of it asks for; "please customers first" asks for something else."""
_SUBJECTS: Final = frozenset(re.findall(r"\w+", "i we you he she it they the a an this that there my our"))
"""Behind a first May or Will: it is the verb then."""
_BEFORE_THE: Final = frozenset(["what is", "what was"])
_SHORT: Final = {"what's": "what is", "where's": "where is", "how's": "how is", "that's": "that is"}
_FIRST: Final = frozenset(re.findall(r"\w+", "am an as at be by do go he how if in is it my of on or so to up us we"))
"""Of one or two letters, but no unit: as the first word of a question their capital says nothing."""
_SMALL: Final = STOP_WORDS | {"he", "she", "her", "him", "his", "once", "up", "here", "ever", "yes", "no", "not", "all"}
"""Words that have a capital inside of a question in titles alone."""
_PROPER: Final = frozenset(
    re.findall(
        r"\w+",
        "may march april june august summer polish turkey china chile jordan georgia guinea jersey japan lima german "
        "pole dane swede finn mark bill will rose frank rich jack grace hope faith art bob dean don drew gene grant "
        "guy herb jean joy job jobs lance miles nick norm pat peg penny pierce ray rob sue wade ward chase cliff dale "
        "dawn glen heath olive pearl violet iris daisy lily ivy amber ginger heather holly hazel crystal carol eve "
        "young brown black white green gates bush trump ford cook smith baker church wood rice cash king prince queen "
        "reading nice mobile bath cork buffalo phoenix orange apple amazon oracle shell target gap visa windows word "
        "excel access teams slack zoom signal edge chrome safari outlook office mercury venus mars earth pluto cancer "
        "go swift rust python java ruby perl dart ada basic scheme scala julia elm flask spark storm beam chef puppet "
        "salt ant maven spring play rails express node react angular cal",
    )
)
"""Words that a capital letter makes others."""
_DIGIT: Final = re.compile(r"\d")


def canonical(text: str) -> str:
    """The key of a question: equal only where the answer must be.

    Case goes where it says nothing, the signs that close the question, a greeting and thanks that stand apart, and
    `the` in "what is the ... of". Word order, every other word and sign, lines, numbers, units (mW is not MW, Mm not
    mm) and spelling stay.
    """
    lines = unicodedata.normalize("NFC", text).strip().splitlines()
    words = _less_manners("\n".join(lines).replace("\n", " \n ").split(" "))
    words, asked = _opened([word for word in words if word == "\n" or word.strip()])
    kept: list[str] = []
    for number, word in enumerate(words):
        before = words[number - 1] if number else ""
        follows = [*words[number + 1 : number + 3], "", ""]
        low = _folded(word, before, follows[0], first=number == 0)
        if low == "the" and " ".join(kept) in _BEFORE_THE and follows[0].islower() and follows[1] == "of":
            continue
        kept.append(_SHORT.get(low, low))
    said = " ".join(kept).split(" ")
    if asked and kept and not (said[0] in _ASKING and said[1:2] and said[1] in _VERBS):
        kept.append("?")
    return " ".join(kept)


def _opened(words: list[str]) -> tuple[list[str], bool]:
    """Without the signs that close the question, and whether a question mark was among them."""
    asked, words = False, list(words)
    while words and words[-1] != words[-1].rstrip(_ENDS):
        bare = words[-1].rstrip(_ENDS)
        signs = words[-1][len(bare) :]
        asked = asked or bool({"?", "？"} & set(signs))
        if "!" in signs and (len(bare) == 1 or bare.endswith(")") or _DIGIT.search(bare[-1:])):
            words[-1] = f"{bare}!"  # n! and 5!
            break
        words[-1:] = [bare] if bare else []
    return words, asked


def _less_manners(words: list[str]) -> list[str]:
    """Without a greeting, a please in front, and thanks in a sentence of their own: "how to say no, thanks" keeps
    them."""
    words = [word for word in words if word]
    if words and words[0][-1] in _ENDS and words[0].rstrip(_ENDS).lower() in _GREETING:
        words = words[1:] if not words[1:] or _begins(words[1]) else words
    if len(words) > 2 and words[0].lower() == "please" and _begins(words[1]):
        words = words[1:]
    for thanks in _THANKS:
        rest = words[: -len(thanks)]
        tail = [word.rstrip(_ENDS).lower() for word in words[-len(thanks) :]]
        if tail == thanks and rest and rest[-1][-1] in _SENTENCE:
            return rest
    return words


def _begins(word: str) -> bool:
    """Whether a question or a request may begin with it, and hardly a name."""
    low = word.lower()
    return low in _ASKING or low in _VERBS or low in _ORDERS or low in _SHORT or low == "please" or word == "I"


def _folded(word: str, before: str, follows: str, *, first: bool) -> str:
    """In lower case where its case says nothing."""
    low = word.lower()
    capitalised = word[:1].isupper() and word[1:] == low[1:]
    if word == low:
        return low
    if not capitalised or _DIGIT.search(word) or _DIGIT.search(before):
        return word  # US, mW, pH, iOS; 5 Mb
    if low.rstrip(_ENDS) in _SMALL and not first and low != "i":
        return word  # The Who, Her, Them
    letters = word.rstrip(_ENDS)
    if len(letters) <= 2 and letters != "I" and not (first and low in _FIRST):
        return word  # vitamin C, in Mm
    if letters.lower() in _PROPER and not (first and low in _VERBS and follows.lower() in _SUBJECTS):
        return word
    return low
