"""When a passage answers, and which of its sentences do."""

from __future__ import annotations

import numpy as np
import pytest

from models.knowledge.extraction import MOST, extract, nearness, parted
from models.knowledge.query import Found, Query
from models.knowledge.quoting import citation, cited
from models.knowledge.relevance import relevance, relevant

TEXT = (
    ".. _timers:\n\nTimers\n\nA timer is a task that\nruns every n seconds. It has a name (\"beat\") too! See also:\n\n"
    "- the first way of doing it\n- the second way of doing it"
)  # fmt: skip


def passage(text: str, cosine: float | None = None, start: int = 100, end: int | None = None) -> Found:
    return Found(
        passage="d#00",
        document="d",
        title=None,
        url=None,
        headings=(),
        text=text,
        start=start,
        end=start + len(text) if end is None else end,
        score=1.0,
        cosine=cosine,
    )


def test_sentences_end_where_they_end_and_not_where_a_line_is_full() -> None:
    one = passage(TEXT)
    parts = parted(one)
    assert [part.text for part in parts] == [
        "A timer is a task that\nruns every n seconds.",
        'It has a name ("beat") too!',
        "- the first way of doing it",
        "- the second way of doing it",
    ]
    assert all(TEXT[part.start :].startswith(part.text) for part in parts)


@pytest.mark.parametrize(
    ("near", "quoted"),
    [
        ((0.9, 0.2, 0.1, 0.1), (0, 0)),
        ((0.9, 0.85, 0.1, 0.1), (0, 1)),
        ((0.1, 0.2, 0.85, 0.9), (2, 3)),
        ((0.9, 0.9, 0.9, 0.9), (0, 2)),
    ],
)
def test_a_quote_is_the_nearest_sentence_with_its_near_neighbours(
    near: tuple[float, ...], quoted: tuple[int, int]
) -> None:
    one, parts = passage(TEXT), parted(passage(TEXT))
    told = extract(one, parts, np.array(near, np.float32))
    first, last = parts[quoted[0]], parts[quoted[1]]
    assert quoted[1] - quoted[0] < MOST
    assert told.text == TEXT[first.start : last.start + len(last.text)]
    assert (told.start, told.end) == (100 + first.start, 100 + last.start + len(last.text))


def test_where_letters_of_passage_and_document_differ_the_whole_passage_is_cited() -> None:
    one = passage(TEXT, end=100 + len(TEXT) + 7)
    told = extract(one, parted(one), np.array([0.9, 0.2, 0.1, 0.1], np.float32))
    assert (told.start, told.end) == (one.start, one.end)


def test_without_an_embedder_sentences_are_told_by_the_question_s_words() -> None:
    assert nearness("the first way", parted(passage(TEXT)), None).argmax() == 2


def test_a_passage_answers_by_its_cosine_and_by_the_question_s_words() -> None:
    query = Query(text="How are sleeping cats counted?")
    assert relevance(query, []) == relevance(query, [passage("a cat sleeps")]) == -1.0
    assert relevance(query, [passage("dogs", 0.3), passage("counts sleeping cats", 0.2)]) == pytest.approx(0.7)
    assert relevant(query, [passage("dogs", 0.6)], 0.6, vectors=True)
    words = [passage("dogs", 0.1), passage("a cat sleeps, counted by nobody")]
    assert not relevant(query, words, 0.6, vectors=True)
    assert relevant(query, words, 0.6, vectors=False)


def test_a_reply_cites_the_numbers_that_it_names() -> None:
    shown = [citation(number, passage("x"), 0, 1) for number in (1, 2, 3, 11)]
    for reply, named in (("so [1] and [3].", [1, 3]), ("[2, 11]", [2, 11]), ("list[1]x [99] [a] 2", [1]), ("", [])):
        assert [one.number for one in cited(reply, shown) if one.cited] == named
