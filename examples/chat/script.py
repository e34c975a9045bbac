"""Who says what in the demo: three people talk, and somebody asks what Faust's documentation knows. A model of 135
million weights knows little, and chats."""

from __future__ import annotations

from typing import Final, NamedTuple

TALKS: Final[dict[str, tuple[str, ...]]] = {
    "ann": (
        "Hello! My name is Ann, and I live by the sea.",
        "What is the capital of France?",
        "Do you remember my name?",
    ),
    "ben": (
        "I have two dogs, Max and Bella. Say hello to them!",
        "Write one sentence about a dog at the beach.",
        "What are my dogs called?",
    ),
    "cleo": (
        "Explain in one sentence what a stream of events is.",
        "And what is a database?",
        "Thank you! Say goodbye in a friendly way.",
    ),
}
TURNS: Final = 3
TOKENS: Final = 48
"""Of a reply, at most."""
CRASH: Final = 1
"""In the middle of the replies of this turn, counted from 0, the worker is killed."""


class Question(NamedTuple):
    """What somebody wants to know of Faust."""

    text: str
    page: str
    """Where its documentation answers that."""


READER: Final = "dora"
QUESTIONS: Final = (
    Question("What is a tumbling window?", "userguide/tables.rst"),
    Question("How do I use Faust in a Django project?", "userguide/application.rst"),
)
"""Put to the model, with passages."""
FOREIGN: Final = "What is the capital of France?"
"""Its documentation doesn't know."""
QUOTED: Final = "To which email address do I report security bugs?"
"""Answered by the page's own words;"""
PAGE: Final = "contributing.rst"
BEFORE: Final = "security@celeryproject.org"
AFTER: Final = "watch@faust.example"
"""this is changed, then the page is deleted."""
