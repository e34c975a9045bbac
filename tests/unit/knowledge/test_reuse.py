"""When an answer is given again: never for a question that only looks the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.knowledge.canonical import canonical
from models.knowledge.reuse import Grounds, answer_key
from tests.unit.knowledge.near_misses import pairs

GROUNDS = Grounds("acme", b"context", (3, 1), "model", "embedder")


def test_of_two_thousand_near_misses_none_gets_the_answer_of_the_other() -> None:
    near = pairs()
    assert len(near) >= 2000
    wrong = [(a, b) for a, b in near if answer_key(a, GROUNDS) == answer_key(b, GROUNDS)]
    assert wrong == []


@pytest.mark.parametrize(
    ("question", "same"),
    [
        ("What is a partition?", "what is a partition"),
        ("What is a partition?", "  WHAT   is a partition ?? ".replace("WHAT", "What")),
        ("What is the capital of France?", "what is capital of france"),
        ("Hello, what is Kafka?", "What is kafka? Please."),
        ("How do I reset a table? Thanks!", "how do I reset a table"),
        ("What's a topic?", "what is a topic"),
        ("Please restart the worker.", "restart the worker"),
        ("Restart the worker. Thank you!", "restart the worker"),
        ("Will it rain?", "will it rain?"),
        ("Hi! Please explain windows", "explain windows"),
        ("can I delete it?", "Can I delete it?"),
        ("Cafe\u0301 in Oslo", "Café in oslo"),
    ],
)
def test_what_says_nothing_is_no_reason_to_compute_again(question: str, same: str) -> None:
    assert answer_key(question, GROUNDS) == answer_key(same, GROUNDS) is not None


@pytest.mark.parametrize(
    "other",
    [
        GROUNDS._replace(tenant="other"),
        GROUNDS._replace(tenant=None),
        GROUNDS._replace(tenant=""),
        GROUNDS._replace(context=b"other"),
        GROUNDS._replace(knowledge=(3, 2)),
        GROUNDS._replace(knowledge=(31,)),
        GROUNDS._replace(knowledge=()),
        GROUNDS._replace(model="model2"),
        GROUNDS._replace(embedder=""),
        GROUNDS._replace(context=b"contextmodel", model=""),
    ],
)
def test_whatever_else_an_answer_depends_on_must_be_the_same(other: Grounds) -> None:
    assert answer_key("What is a topic?", GROUNDS) != answer_key("What is a topic?", other)


@pytest.mark.parametrize("question", ["", " ", "?", "...", "!?", "Hi!", "\u200b"])
def test_a_question_without_words_is_never_answered_from_before(question: str) -> None:
    assert answer_key(question, GROUNDS) is None


@given(text=st.text())
def test_a_key_is_its_own_key_in_any_text(text: str) -> None:
    key = canonical(text)
    assert canonical(f"  {text}\n") == key
    assert answer_key(text.replace(" ", "  "), GROUNDS) == answer_key(text, GROUNDS)


@given(words=st.permutations(["how", "does", "one", "worker", "follow", "another"]))
def test_the_order_of_words_is_kept(words: list[str]) -> None:
    assert canonical(" ".join(words)).split() == words
