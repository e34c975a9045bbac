"""Faust's own documentation as documents: 202 pages of reStructuredText, out of faust-streaming's sdist (BSD)."""

from __future__ import annotations

import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from core.events import Document
from examples.package import Package, PackageError, fetch
from models.knowledge.passage import Passage

PACKAGE: Final = Package(
    "faust-streaming==0.15.3",
    "faust_streaming-0.15.3.tar.gz",
    "51d6de8d7984c1e47ce961ba4c066e82a6b69d7b02d6bc27129677c4bfb1235f",
)
PAGES: Final = 202
_MARKUP: Final = re.compile(r":[\w:+.-]+:`~?([^`<]+)(?:<[^`]*>)?`|``([^`]+)``|[`*_]")
_LEAST: Final = 20
"""Words that a section must have to answer anything."""


class Question(NamedTuple):
    """A heading, and where it stood."""

    text: str
    document: str
    headings: tuple[str, ...]

    def answered_by(self, document: str, headings: tuple[str, ...]) -> bool:
        """Whether a passage is of its section."""
        return document == self.document and headings[: len(self.headings)] == self.headings


def documents() -> list[Document]:
    """Every page, by its path. Raises PackageError."""
    found = []
    with tarfile.open(fetch(PACKAGE)) as archive:
        for member in archive.getmembers():
            path = PurePosixPath(member.name)
            if path.suffix == ".rst" and path.parts[1:2] == ("docs",):
                stream = archive.extractfile(member)
                assert stream is not None
                name = "/".join(path.parts[2:])
                found.append(Document(id=name, text=stream.read().decode(), tags=(path.parts[2],), format="text"))
    if len(found) != PAGES:
        raise PackageError(f"{PACKAGE.file} has {len(found)} pages; another file?")
    return sorted(found, key=lambda document: document.id)


def questions(passages: dict[str, list[Passage]]) -> Iterator[Question]:
    """The headings of sections that have something to say, where no other section has the same: two words and more.

    passages: of each document."""
    sections: dict[tuple[str, tuple[str, ...]], int] = Counter()
    for name, some in passages.items():
        for passage in some:
            for depth in range(2, len(passage.headings) + 1):
                sections[name, passage.headings[:depth]] += len(passage.text.split())
    leaves = Counter(headings[-1].lower() for _, headings in sections)
    for (name, headings), words in sections.items():
        text = _MARKUP.sub(lambda found: found[1] or found[2] or "", headings[-1]).strip(" :.")
        if words >= _LEAST and len(text.split()) >= 2 and leaves[headings[-1].lower()] == 1:
            yield Question(text, name, headings)
