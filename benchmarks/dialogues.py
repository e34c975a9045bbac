"""Long talks that are made up: facts that somebody states early on, much talk of other things, questions at the end."""

from __future__ import annotations

import random
from typing import Final, NamedTuple

from core.messages import Said

CHATTER: Final = 40
"""Turns between facts and questions."""


class Fact(NamedTuple):
    """Something that is stated once, with what stands for {} in each talk."""

    stated: str
    asked: str
    """In other words than it was stated."""
    answers: tuple[str, ...]


FACTS: Final = (
    Fact("My sister Anna moved to {} last spring.", "Which city does my sister live in?", ("Lisbon", "Oslo", "Prague")),
    Fact("I can't eat {}, it makes me ill.", "What food am I allergic to?", ("peanuts", "shrimps", "strawberries")),
    Fact("Our dog is called {}.", "What is the name of my pet?", ("Biscuit", "Rufus", "Pepper")),
    Fact("I work as a {} in a small town.", "What is my profession?", ("dentist", "carpenter", "librarian")),
    Fact("The meeting with the bank is on {}.", "When do I see the bank?", ("Tuesday", "Thursday", "Friday")),
    Fact("I have booked room {} in the hotel.", "Which hotel room is mine?", ("217", "408", "533")),
    Fact("My car is a {} one, quite old.", "What colour is my car?", ("green", "yellow", "silver")),
    Fact("I'm learning to play the {}.", "Which instrument am I learning?", ("cello", "harp", "trumpet")),
    Fact(
        "My daughter studies {} in the north.", "What subject does my daughter study?", ("geology", "law", "medicine")
    ),
    Fact("The password of the printer is {}.", "How do I log in to the printer?", ("walnut77", "amber12", "falcon31")),
    Fact("My flight leaves at {} in the morning.", "What time does my plane take off?", ("6:40", "7:15", "9:05")),
    Fact("I was born in {}.", "In which year was I born?", ("1958", "1971", "1984")),
)
ACKNOWLEDGED: Final = ("I see, I will remember that.", "Thank you for telling me.", "Good to know!")
TOPICS: Final = (
    "the weather", "old films", "gardens in autumn", "tea and coffee", "long walks", "trains", "crossword puzzles",
    "the moon", "cheese", "painting walls", "bicycles", "museums", "rivers", "clocks", "bread", "mountains", "chess",
    "lighthouses", "soup", "poems", "islands", "bridges", "birds", "shoes", "candles", "snow", "maps", "kites",
)  # fmt: skip
SAID: Final = (
    "I have been thinking about {} a lot these days, I don't know why.",
    "What do you think about {}? My neighbour talks of nothing else.",
    "Yesterday there was something about {} on the radio, it went on for an hour.",
    "Somebody told me that {} are what people miss most when they are away.",
    "Can you tell me something nice about {}?",
)
REPLIED: Final = (
    "There is a lot to say about {}. Many people enjoy them more the longer they think about them, and no two would "
    "say the same. It helps to take some time and look closely.",
    "People have always liked {}. They remind us of quiet days, of childhood and of things that last, and they are a "
    "good reason to meet friends.",
    "Nothing is as simple as it looks, and {} are no exception: ask three people and you get four answers, all of "
    "them right in some way.",
)


class Dialogue(NamedTuple):
    """One talk, and what is asked at its end."""

    said: list[Said]
    questions: list[tuple[str, str]]
    """With what has to be in an answer."""


def dialogue(number: int, facts: int = 6) -> Dialogue:
    """The talk of that number: the same whenever it is made."""
    chance = random.Random(number)
    said: list[Said] = []
    questions = []
    for fact in chance.sample(FACTS, facts):
        answer = chance.choice(fact.answers)
        said += [Said("user", fact.stated.format(answer)), Said("assistant", chance.choice(ACKNOWLEDGED))]
        questions.append((fact.asked, answer))
    for _ in range(CHATTER):
        topic = chance.choice(TOPICS)
        said += [
            Said("user", chance.choice(SAID).format(topic)),
            Said("assistant", chance.choice(REPLIED).format(topic)),
        ]
    return Dialogue(said, questions)
