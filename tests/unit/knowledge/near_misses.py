"""Pairs of questions that look alike and must not get one answer: made by rules, and by hand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations, product

Pair = tuple[str, str]

CITIES = ["Berlin", "Paris", "Oslo", "Lima", "Kyoto", "Cairo"]
NAMES = ["Ann", "Bob", "Carla", "Dmitri", "Eve", "Farid"]
THINGS = ["consumer", "producer", "partition", "topic", "table", "worker", "session", "changelog"]
UNITS = [
    "5 mW",
    "5 MW",
    "5 kW",
    "5 mb",
    "5 Mb",
    "5 MB",
    "5 GB",
    "5 m",
    "5 M",
    "5 mm",
    "5 km",
    "5 °C",
    "5 °F",
    "5 %",
    "5 %o",
]
NUMBERS = [
    "5",
    "-5",
    "+5",
    "50",
    "5.0",
    ".5",
    "0.5",
    "1.5",
    "15",
    "1,5",
    "1,500",
    "1.500",
    "1500",
    "5²",
    "5/2",
    "5e3",
    "½",
]
CURRENCIES = ["$5", "€5", "£5", "¥5", "5"]
DATES = [
    "2026-01-02",
    "2026-02-01",
    "01/02/2026",
    "02/01/2026",
    "1 May 2026",
    "1 March 2026",
    "2 May 2026",
    "1 May 2025",
]
WHEN = ["yesterday", "today", "tomorrow", "next week", "last week", "in 2025", "in 2026", "on Monday", "on Tuesday"]
OPPOSITES = [
    ("before", "after"), ("above", "below"), ("with", "without"), ("to", "from"), ("import", "export"), ("up", "down"),
    ("enable", "disable"), ("start", "stop"), ("increase", "decrease"), ("minimum", "maximum"), ("first", "last"),
    ("all", "any"), ("always", "never"), ("more", "less"), ("buy", "sell"), ("push", "pull"), ("inside", "outside"),
    ("allowed", "forbidden"), ("include", "exclude"), ("earlier", "later"), ("must", "may"), ("can", "should"),
    ("is", "was"), ("will", "did"), ("some", "no"), ("upload", "download"), ("encrypt", "decrypt"), ("who", "whom"),
]  # fmt: skip
FRAMES = [
    "how do I {} it", "what happens if I {} it", "why can a {} fail", "is it {} the limit", "tell me the {} value",
    "is a worker {} a key ready", "does it {} the state", "{} the deadline?", "when is {} right", "Please explain {}",
]  # fmt: skip
PLAIN = [
    "the consumer is fast", "a partition can be moved", "the worker does restart", "I have to pay", "Kafka is running",
    "the table was deleted", "my order has arrived", "you should commit", "it will be late", "they are allowed",
]  # fmt: skip
NEGATIONS = ["not", "never", "no longer", "hardly", "only", "also", "still", "already"]

BY_HAND: list[Pair] = [
    ("what is the matter", "what is matter"),
    ("who are the Who", "who are the who"),
    ("who directed Her?", "who directed her?"),
    ("who killed Them", "who killed them"),
    ("who wrote It?", "who wrote it?"),
    ("are the sons of Bob tall", "are sons of Bob tall"),
    ("what are the odds of it", "what are odds of it"),
    ("What is the time?", "What is time?"),
    ("what is the law", "what is law"),
    ("is the water clean", "is water clean"),
    ("which are the stars", "which are stars"),
    ("No, commits are lost", "No commits are lost"),
    ("Don't, stop", "Don't stop"),
    ("Let's eat, Carla", "Let's eat Carla"),
    ("Stop. Don't delete it", "Stop don't delete it"),
    ("is it a, b or c", "is it a b or c"),
    ("what is 5!", "what is 5"),
    ("what is n!", "what is n"),
    ("what is (a+b)!", "what is (a+b)"),
    ("convert km to Mm", "convert km to mm"),
    ("how many Cal is it", "how many cal is it"),
    ("a file of five Mb", "a file of five mb"),
    ("Polish furniture", "polish furniture"),
    ("March in Berlin?", "march in Berlin?"),
    ("May 5 events be sent", "may 5 events be sent"),
    ("Will Smith or Bob pay?", "will Smith or Bob pay?"),
    ("who sang with Sting and Queen", "who sang with Sting and queen"),
    ("who knows Rob", "who knows rob"),
    ("Hello, Dolly: who wrote it?", "Dolly: who wrote it?"),
    ("Hey, Jude: who wrote it?", "Jude: who wrote it?"),
    ("Please customers first", "customers first"),
    ("how do I say no, thanks", "how do I say no"),
    ("how do I say yes, please", "how do I say yes"),
    ("how do I say: thank you", "how do I say"),
    ("What he said is true?", "What he said is true"),
    ("When it rains it pours?", "When it rains it pours"),
    ("delete a\nb", "delete a b"),
    ("from 1 to 10", "from 10 to 1"),
    ("10 am", "10 pm"),
    ("at ten AM", "at ten am"),
    ("31/12/2025", "12/31/2025"),
    ("the week of 1 May", "the week of May 1"),
    ("Who leads the US?", "Who leads us?"),
    ("what is IT", "what is it"),
    ("When does May work?", "When does may work?"),
    ("is he Polish", "is he polish"),
    ("Who fixed the March?", "Who fixed the march?"),
    ("what does vitamin A do", "what does vitamin do"),
    ("is vitamin a good", "is vitamin good"),
    ("is there a little hope", "is there little hope"),
    ("a few errors", "few errors"),
    ("out of the question", "out of question"),
    ("is in charge of", "is in the charge of"),
    ("go to school by bus", "go to bus by school"),
    ("Can the dog bite the man?", "Can the man bite the dog?"),
    ("flights from Oslo to Lima", "flights to Oslo from Lima"),
    ("is A larger than B", "is B larger than A"),
    ("convert 5 C to F", "convert 5 F to C"),
    ("does C++ have it", "does C# have it"),
    ("does C++ have it", "does C have it"),
    ("is .NET dead", "is net dead"),
    ("what is x^2", "what is x2"),
    ("what is x²", "what is x2"),
    ("what is -3", "what is 3"),
    ("is it 1-2", "is it 12"),
    ("is it 1.2", "is it 12"),
    ("is it 1:2", "is it 12"),
    ("call 12 34", "call 1234"),
    ('he said "no"', "he said no"),
    ("is 'null' allowed", "is null allowed"),
    ("f(x)", "fx"),
    ("a/b", "ab"),
    ("a/b", "a b"),
    ("re-sign the contract", "resign the contract"),
    ("what's new in 3.11", "what's new in 3.1"),
    ("version 2", "version 2.0.1"),
    ("what is pH", "what is ph"),
    ("list my boys' shoes", "list my boys shoes"),
    ("its state", "it's state"),
    ("were you there", "we're you there"),
    ("can I do it", "can't I do it"),
    ("you deleted it", "you deleted it?"),
    ("stop!", "stop?"),
    ("delete all but one", "delete all one"),
    ("I want to stop", "I don't want to stop"),
    ("do I need it", "do you need it"),
    ("my invoice", "your invoice"),
    ("his invoice", "her invoice"),
    ("Maße", "Masse"),
    ("schon fertig", "schön fertig"),
    ("resume the job", "résumé the job"),
    ("pay 10 € now", "pay 10 $ now"),
    ("what is 10% of 50", "what is 10 of 50"),
    ("at 5 am", "at 5 pm"),
    ("at 05:00", "at 17:00"),
    ("Is it on?", "Is it one?"),
    ("erase user 17", "erase user 71"),
    ("send 100 to ann", "send 1000 to ann"),
    ("is the file read", "is the file red"),
    ("affect the state", "effect the state"),
    ("who is the Who", "who is who"),
    ("where is the Hague", "where is hague"),
    ("thank you note", "note"),
    ("hello world program", "world program"),
    ("Hello world, how is it", "world, how is it"),
    ("please in Spanish", "in Spanish"),
    ("Please please me", "me"),
    ("how to say please", "how to say"),
    ("who said thanks", "who said"),
    ("who said thank you", "who said"),
    ("what is thank you in Thai", "what is in Thai"),
    ("kindly people in Oslo", "people in Oslo"),
    ("what is a hello", "what is a"),
    ("10 mg of it", "10 Mg of it"),
    ("10mW of it", "10MW of it"),
    ("5 S", "5 s"),
    ("what is K", "what is k"),
    ("5 Å", "5 a"),
    ("what does the above mean", "what does above mean not"),
    ("dose for 3 year olds", "dose for 3-year-olds not"),
]


def generated() -> Iterator[tuple[str, Pair]]:
    """By rules: the kind, and a pair of it."""
    for a, b in permutations(CITIES, 2):
        yield "direction", (f"How long is the flight from {a} to {b}?", f"How long is the flight from {b} to {a}?")
        yield "direction", (f"Is {a} north of {b}?", f"Is {b} north of {a}?")
        yield "entities", (f"distance {a} {b}, by train", f"distance {a} {b}, by plane")
    for a, b in permutations(NAMES, 2):
        yield "direction", (f"Did {a} pay {b}?", f"Did {b} pay {a}?")
        yield "entities", (f"Who told {a} about it", f"Who told {b} about it")
        yield "direction", (f"{a} is older than {b}", f"{b} is older than {a}")
    for a, b in combinations(THINGS, 2):
        yield "entities", (f"what is a {a}", f"what is a {b}")
        yield "order", (f"can a {a} own a {b}", f"can a {b} own a {a}")
        yield "order", (f"does the {a} wait for the {b}?", f"does the {b} wait for the {a}?")
        yield "order", (f"Please delete the {a}, not the {b}", f"Please delete the {b}, not the {a}")
    for kind, some, frame in (
        ("units", UNITS, "Is {} too much?"), ("units", UNITS, "what is {} in words"),
        ("numbers", NUMBERS, "is {} allowed"), ("numbers", NUMBERS, "Set it to {}"),
        ("units", CURRENCIES, "Can I pay {}?"), ("dates", DATES, "what happened on {}"),
        ("dates", DATES, "Is it due {}?"), ("dates", WHEN, "did it fail {}"), ("dates", WHEN, "What is planned {}?"),
    ):  # fmt: skip
        for a, b in combinations(some, 2):
            yield kind, (frame.format(a), frame.format(b))
    for (a, b), frame in product(OPPOSITES, FRAMES):
        yield "opposites", (frame.format(a), frame.format(b))
        yield "negation", (frame.format(a), frame.format(f"not {a}"))
    for statement, word in product(PLAIN, NEGATIONS):
        words = statement.split()
        for at in range(1, len(words) + 1):
            yield "negation", (statement, " ".join([*words[:at], word, *words[at:]]))
    for n in range(130):
        yield "numbers", (f"where is order {n}", f"where is order {n + 1}")
        yield "numbers", (f"show the last {n + 2} of {n + 3}", f"show the last {n + 3} of {n + 2}")


def kinds() -> dict[str, list[Pair]]:
    """Kind -> its pairs, each once, in either order; those by hand are a kind of their own."""
    found: dict[str, dict[Pair, None]] = {}
    for kind, pair in (*generated(), *(("by hand", pair) for pair in BY_HAND)):
        found.setdefault(kind, {})[min(pair), max(pair)] = None
    return {kind: list(some) for kind, some in found.items()}


def pairs() -> list[Pair]:
    """All of them, each once."""
    return list({pair: None for some in kinds().values() for pair in some})
