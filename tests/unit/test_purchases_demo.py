"""The demo's books: what it counts as missing, repeated and taken over, and when it says that something is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.events import Observation, Role
from examples.purchases.customers import customer, recount
from examples.purchases.data import DAY_MS
from examples.purchases.demo import sample
from examples.purchases.labels import Quality
from examples.purchases.ledger import Answer, Ledger
from examples.purchases.report import Report
from examples.purchases.screen import Screen

EVENTS = [
    Observation(id=f"e{n}", session=f"c{n % 3}", ts=n * DAY_MS, features={"amount": 10.0 + n, "quantity": 1.0})
    for n in range(12)
]
MANY = [
    Observation(id=f"e{n}", session=f"c{n % 3}", ts=n * DAY_MS, features={"amount": 10.0 + n, "quantity": 1.0})
    for n in range(21)
]
TURNS: Sequence[tuple[str, Role]] = [
    ("1", "active"),
    ("1", "active"),
    ("2", "active"),
    ("1", "active"),
    ("3", "canary"),
    ("1", "active"),
    ("3", "active"),
]
COURSE = [turn for turn in TURNS for _ in range(3)]
"""Of MANY, in three partitions."""
GOOD = {"1": Quality(100, 0.4, 0.75), "2": Quality(100, 0.4, 0.74)}


def answer(
    place: int,
    version: str = "1",
    id_: str | None = None,
    role: Role = "active",
    events: Sequence[Observation] = EVENTS,
) -> Answer:
    """To an event; those of one customer share a partition."""
    event = events[place]
    return Answer(
        id=id_ or f"observations/{place % 3}/{place // 3}",
        event_id=event.id,
        session=event.session,
        ts=event.ts,
        model="repeat-purchase",
        version=version,
        label="returns",
        scores={"returns": 0.6, "lapses": 0.4},
        confidence=0.1,
        low_confidence=False,
        role=role,
    )


def ledger(answers: Iterable[Answer]) -> Ledger:
    """All events sent, and these answers read."""
    books = Ledger(EVENTS)
    books.sending(0, len(EVENTS))
    books.labels = len(EVENTS)
    books.read(list(answers))
    return books


def broken(books: Ledger, *, repeats: bool = True, joined: int = 12) -> list[str]:
    """The claims that don't hold."""
    row = recount([event for event in books.events if event.session == "c0"])
    five = [customer(books.latest["c0"], row, books.events)]
    report = Report(books, "1", "2", 0.0, 6, five, GOOD, joined)
    return [claim for held, claim in report.claims(repeats=repeats) if not held]


def changed_at(place: int) -> list[Answer]:
    return [answer(n, "1" if n < place else "2") for n in range(len(EVENTS))]


def test_a_run_in_which_all_went_well_has_nothing_to_complain_of() -> None:
    assert broken(ledger(changed_at(6))) == []


def test_a_missing_answer_is_found() -> None:
    answers = changed_at(6)
    del answers[4]
    books = ledger(answers)
    assert books.waiting == 1
    assert "every purchase was answered" in broken(books)


def test_a_repeat_is_counted_and_no_fault_unless_the_broker_has_transactions() -> None:
    books = ledger([*changed_at(6), answer(3)])
    assert (books.answered, books.repeats, books.contradictions) == (len(EVENTS), 1, 0)
    assert broken(books) == []
    assert broken(books, repeats=False) == ["no purchase was answered twice"]


@pytest.mark.parametrize("second", [answer(3, id_="observations/0/99"), answer(3, id_="observations/1/1")])
def test_a_second_answer_under_another_id_is_a_fault(second: Answer) -> None:
    books = ledger([*changed_at(6), second])
    assert books.contradictions == 1
    assert len(broken(books)) == 1


def test_an_answer_to_an_event_that_nobody_sent_is_a_fault() -> None:
    stranger = answer(3)
    stranger.event_id, stranger.id = "nobody's", "observations/0/99"
    assert len(broken(ledger([*changed_at(6), stranger]))) == 1


def test_a_version_that_comes_back_among_the_others_answers_is_a_fault() -> None:
    answers = changed_at(3)
    answers[6] = answer(6, "1")
    assert len(broken(ledger(answers))) == 1


def test_the_fallback_comes_back_and_shares_with_the_candidate_until_that_answers_alone() -> None:
    books = Ledger(MANY)
    books.sending(0, len(MANY))
    books.labels = 12
    books.read([answer(n, version, role=role, events=MANY) for n, (version, role) in enumerate(COURSE)])
    assert set(books.courses().values()) == {"1121c13"}
    assert broken(books) == []
    assert books.versions == ["1", "2", "3"]
    assert (len(books.of("3")), len(books.of("3", canary=True))) == (6, 3)
    assert books.first_offsets("3") == {0: 4, 1: 4, 2: 4}


def test_a_label_that_found_no_answer_is_a_fault() -> None:
    assert broken(ledger(changed_at(6)), joined=11) == ["every label found its answer (NOT: 1)"]


def test_a_version_that_never_came_is_a_fault() -> None:
    assert len(broken(ledger(changed_at(len(EVENTS))))) == 1


def test_a_state_that_differs_from_the_recount_names_its_column() -> None:
    row = recount([e for e in EVENTS if e.session == "c0"])
    assert customer(answer(9), row, EVENTS).differs == ()
    assert customer(answer(9), row | {"sum.amount": 1.0}, EVENTS).differs == ("sum.amount",)
    assert customer(answer(9), {}, EVENTS).differs == ("count", "first_ts", "last_ts", "sum.amount")


def test_what_is_wrong_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().verdict([(True, "this"), (False, "that")])
    assert capsys.readouterr().out == "\nyes  this\nNO   that\n"


@given(count=st.integers(1, 12))
def test_a_sample_has_all_purchases_of_its_customers(count: int) -> None:
    kept = sample(EVENTS, count)
    customers = {event.session for event in kept}
    assert kept == [event for event in EVENTS if event.session in customers]
    assert abs(len(kept) - count) < 4, "off by a whole customer"
