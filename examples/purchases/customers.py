"""Five customers at the end of the stream: what the worker knows of them, against a recount of their purchases."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from core.events import Observation
from examples.purchases.features import raw
from examples.purchases.labels import RETURNS, Purchases
from examples.purchases.ledger import Answer

SHOWN: Final = 5
CLOSE: Final = 1e-9
"""Relative difference that the order of additions may make."""


@dataclass(frozen=True, slots=True)
class Customer:
    """One customer."""

    session: str
    purchases: int
    dollars: float
    first: str
    last: str
    """Times as the table shows them: ISO, UTC."""
    returns: float
    """Odds of another purchase within 60 days, as of the last one."""
    version: str
    """Who says so."""
    differs: tuple[str, ...]
    """Columns of the worker's row that a recount has otherwise."""


def chosen(latest: Mapping[str, Answer], purchases: Purchases) -> list[str]:
    """Customers whose 60 days aren't over yet, spread over the scores, the most promising first."""
    undecided = [answer for answer in latest.values() if not purchases.known(answer.ts)]
    ranked = sorted(undecided, key=lambda answer: (-answer.scores[RETURNS], answer.session))
    if not ranked:
        return []
    places = [round(place * (len(ranked) - 1) / (SHOWN - 1)) for place in range(SHOWN)]
    return list(dict.fromkeys(ranked[place].session for place in places))


def customer(latest: Answer, row: Mapping[str, Any], events: Iterable[Observation]) -> Customer:
    """latest: the newest answer; row: the worker's state of the session; events: the whole stream."""
    theirs = [event for event in events if event.session == latest.session]
    expected = recount(theirs)
    return Customer(
        latest.session,
        len(theirs),
        math.fsum(raw(event, "amount") for event in theirs),
        _iso(theirs[0].ts),
        _iso(theirs[-1].ts),
        latest.scores[RETURNS],
        latest.version,
        tuple(name for name, value in expected.items() if not _same(row.get(name), value)),
    )


def recount(events: Sequence[Observation]) -> dict[str, float | str]:
    """What the row of a session must say after these events of it, the plain way."""
    amounts = [raw(event, "amount") for event in events]
    return {
        "count": len(events),
        "first_ts": _iso(min(event.ts for event in events)),
        "last_ts": _iso(max(event.ts for event in events)),
        "sum.amount": math.fsum(amounts),
    }


def _same(got: object, expected: float | str) -> bool:
    if isinstance(expected, str) or not isinstance(got, int | float):
        return got == expected
    return math.isclose(got, expected, rel_tol=CLOSE)


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1e3, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
