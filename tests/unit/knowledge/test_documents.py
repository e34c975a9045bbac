"""Documents on their way in: kept and announced in one step, refused with a reason."""

from __future__ import annotations

import msgspec
import pytest

from agents.documents import take
from core.events import Document
from core.topics import DOCUMENTS, PASSAGES
from engine.testing import in_memory
from models.knowledge.block import LARGEST
from models.knowledge.record import Announced, announced
from tables.documents import documents

BIG = 3 * LARGEST


def told(outputs: list[tuple[str | None, bytes | None]]) -> list[tuple[str | None, Announced | None]]:
    return [(key, None if value is None else announced(value)) for key, value in outputs]


async def test_a_document_is_kept_announced_and_deleted() -> None:
    async with in_memory([take], [documents]) as trial:
        await trial.send(DOCUMENTS, [Document("a", "one", tags=("x",)), Document("a", "two"), Document("b", "three")])
        await trial.send(DOCUMENTS, [None], key="a")
        await trial.send(DOCUMENTS, [None], key="never there")
        await trial.send(DOCUMENTS, [Document("a", "four", tenant="acme")])
        await trial.settle()
        seen = told([(one.key, one.value) for one in trial.outputs(PASSAGES)])
        assert [(key, value and (value.born, value.revision)) for key, value in seen] == [
            ("a", (0, 0)),
            ("a", (0, 1)),
            ("b", (2, 2)),
            ("a", None),
            ("a", (5, 5)),
        ]
        assert seen[0][1] is not None
        assert seen[0][1].tags == ("x",)
        kept = trial.value(documents, "a")
        assert kept is not None
        assert (kept.document.text, kept.born) == ("four", 5)
        assert trial.dead_letters() == []


async def test_what_the_announcement_says_survives_a_crash_with_the_document() -> None:
    async with in_memory([take], [documents]) as trial:
        await trial.send(DOCUMENTS, [Document("a", "one")])
        await trial.settle()
        await trial.send(DOCUMENTS, [None], key="a")
        await trial.crash()
        await trial.settle()
        assert trial.value(documents, "a") is None
        assert [one.value is None for one in trial.outputs(PASSAGES)] == [False, True]


@pytest.mark.parametrize(
    ("raw", "key", "words"),
    [
        (b"not json", "a", "not JSON"),
        (b'{"id": "a"}', "a", "missing required field `text`"),
        (b'{"id": "a", "text": "\xff\xfe"}', "a", "not JSON"),
        (b'{"id": "a", "text": "\\ud800"}', "a", "not JSON"),
        (b'{"id": "a", "text": 7}', "a", "Expected `str`"),
        (b'{"id": "a", "text": "x", "format": "pdf"}', "a", "pdf"),
        (b'{"id": "a", "text": "x", "tags": ["' + b"t" * 201 + b'"]}', "a", "tags"),
        (b'{"id": "a", "text": "x", "tenant": ""}', "a", "tenant"),
        (msgspec.json.encode(Document("a", "x")), "b", "they must be equal"),
        (msgspec.json.encode(Document("a", "x" * BIG)), "a", "6,000,000 characters"),
        (b'{"x":' * 100_000, "a", "nested too deeply"),
    ],
)
async def test_what_is_no_document_is_a_dead_letter_that_says_why(raw: bytes, key: str, words: str) -> None:
    async with in_memory([take], [documents]) as trial:
        await trial.send(DOCUMENTS, [raw], key=key)
        await trial.send(DOCUMENTS, [Document("good", "x")])
        await trial.settle()
        (letter,) = trial.dead_letters()
        assert words in letter.headers["message"] or words in letter.headers["error"], letter.headers
        assert len(trial.outputs(PASSAGES)) == 1
