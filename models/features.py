"""The closed vocabulary of fields: what a manifest may ask for, and how each name is taken apart.

A name is either a raw feature of the event ("value") or a running aggregate of its session:

    session.count   session.seconds_since_first   session.seconds_since_last   session.mean_gap
    session.KIND.FIELD              KIND: sum, mean, min, max, variance, last, zscore
    session.decayed_mean.FIELD@HALFLIFE     HALFLIFE: 30s, 15m, 6h, 7d

Closed, because each one has a column and a fold in the sessions table; a misspelt name must fail when the model
loads, not score on a default for ever.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from core.errors import ManifestError

SESSION: Final = "session."
"""What every session feature's name starts with; no raw feature's name may."""


class Kind(StrEnum):
    """The running aggregates that a session keeps."""

    COUNT = "count"
    SECONDS_SINCE_FIRST = "seconds_since_first"
    SECONDS_SINCE_LAST = "seconds_since_last"
    MEAN_GAP = "mean_gap"
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    VARIANCE = "variance"
    LAST = "last"
    ZSCORE = "zscore"
    DECAYED_MEAN = "decayed_mean"


WITHOUT_FIELD: Final = frozenset({Kind.COUNT, Kind.SECONDS_SINCE_FIRST, Kind.SECONDS_SINCE_LAST, Kind.MEAN_GAP})
"""Aggregates of the events themselves, whatever they carry."""

UNITS: Final[dict[str, int]] = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
"""Seconds in each unit of a half-life, largest first."""

_HALF_LIFE = re.compile(r"([1-9][0-9]{0,8})([smhd])", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class RawFeature:
    """A feature that the event itself carries."""

    field: str

    @property
    def name(self) -> str:
        """As manifests write it."""
        return self.field

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class SessionFeature:
    """A running aggregate of the event's session, as it stands once the event is folded in."""

    kind: Kind
    field: str | None = None
    """The raw feature it aggregates; None for aggregates of the events themselves."""
    half_life_s: int | None = None
    """Only of decayed means: seconds after which a value counts half."""

    @property
    def name(self) -> str:
        """The one spelling of this feature: a half-life in its largest whole unit, so 60s becomes 1m."""
        if self.field is None:
            return f"{SESSION}{self.kind}"
        if self.half_life_s is None:
            return f"{SESSION}{self.kind}.{self.field}"
        unit = next(unit for unit, seconds in UNITS.items() if self.half_life_s % seconds == 0)
        return f"{SESSION}{self.kind}.{self.field}@{self.half_life_s // UNITS[unit]}{unit}"

    def __str__(self) -> str:
        return self.name


Feature = RawFeature | SessionFeature


def parse(name: str) -> Feature:
    """Takes a manifest's field name apart. Two spellings of one half-life give equal features.

    Raises ManifestError for an empty name, and for a `session.` name that isn't in the vocabulary: the message
    lists what is.
    """
    if not name or name != name.strip():
        raise ManifestError(f"field name {name!r} is empty or has blanks around it")
    if not name.startswith(SESSION):
        return RawFeature(name)
    kind_name, dot, rest = name.removeprefix(SESSION).partition(".")
    try:
        kind = Kind(kind_name)
    except ValueError:
        raise _unknown(name, f"there is no session feature {kind_name!r}") from None
    if kind in WITHOUT_FIELD:
        if dot:
            raise _unknown(name, f"{SESSION}{kind} takes no field")
        return SessionFeature(kind)
    if kind is not Kind.DECAYED_MEAN:
        if not rest:
            raise _unknown(name, f"{SESSION}{kind} needs the field that it aggregates")
        return SessionFeature(kind, _raw(name, rest))
    field, _, half_life = rest.rpartition("@")
    match = _HALF_LIFE.fullmatch(half_life)
    if not field or match is None:
        raise _unknown(name, f"{SESSION}{kind} needs a field and a half-life, as in value@15m")
    return SessionFeature(kind, _raw(name, field), int(match[1]) * UNITS[match[2]])


def vocabulary() -> tuple[str, ...]:
    """Every session feature, as an error lists them."""
    plain = (f"{SESSION}{kind}" for kind in Kind if kind in WITHOUT_FIELD)
    fielded = (f"{SESSION}{kind}.FIELD" for kind in Kind if kind not in WITHOUT_FIELD | {Kind.DECAYED_MEAN})
    return (*plain, *fielded, f"{SESSION}{Kind.DECAYED_MEAN}.FIELD@HALFLIFE (30s, 15m, 6h, 7d)")


def _raw(name: str, field: str) -> str:
    """The field of an aggregate: a raw feature, since aggregates of aggregates don't exist."""
    if field.startswith(SESSION) or field != field.strip():
        raise _unknown(name, f"{field!r} is no raw feature")
    return field


def _unknown(name: str, why: str) -> ManifestError:
    return ManifestError(f"field {name!r}: {why}; session features are {', '.join(vocabulary())}")
