"""Who says what in the demo: three people, four turns each. A model of 135 million weights knows little, and chats."""

from __future__ import annotations

from typing import Final

TALKS: Final[dict[str, tuple[str, ...]]] = {
    "ann": (
        "Hello! My name is Ann, and I live by the sea.",
        "What is the capital of France?",
        "Tell me one thing that I could do there on a rainy day.",
        "Do you remember my name?",
    ),
    "ben": (
        "I have two dogs, Max and Bella. Say hello to them!",
        "Write one sentence about a dog at the beach.",
        "What do dogs like to eat?",
        "What are my dogs called?",
    ),
    "cleo": (
        "Explain in one sentence what a stream of events is.",
        "And what is a database?",
        "Which of the two would you use to count visitors, and why?",
        "Thank you! Say goodbye in a friendly way.",
    ),
}
TURNS: Final = 4
TOKENS: Final = 48
"""Of a reply, at most."""
CRASH: Final = 2
"""In the middle of the replies of this turn, counted from 0, the worker is killed."""
