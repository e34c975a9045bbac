"""How values look: times, and how much of a big one is shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.late import iso
from web.values import Look

texts = st.text("abc")
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=50,
)


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_a_time_is_told_to_the_millisecond(ms: int) -> None:
    told = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")
    assert iso(ms) == told.replace("+00:00", "Z")


@given(values)
def test_what_there_is_room_for_is_shown_as_it_is(value: Any) -> None:
    look = Look()
    assert look.at(value) == value
    assert not look.cut


@given(values, st.integers(1, 300))
def test_what_is_shown_has_a_bound_whatever_the_value(value: Any, room: int) -> None:
    look = Look(room)
    shown = look.at(value)
    assert look.cut or shown == value
    assert len(msgspec.json.encode(shown)) <= 10 * room + 200


def test_a_look_at_what_is_wide_deep_and_empty_ends_soon() -> None:
    deep: Any = []
    for _ in range(300):
        deep = [deep, *([[]] * 1000)]
    look = Look(1000)
    assert len(msgspec.json.encode(look.at(deep))) < 12_000
    assert look.cut
    assert len(msgspec.json.encode(Look(1000).at({"k" * 1_000_000: 1}))) < 100


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("ts", 1_764_374_400_000, True),
        ("since", 1_764_374_400_000, True),
        ("first_ts", 1_764_374_400_123, True),
        ("due_at", 1_764_374_400_000, True),
        ("tsx", 1_764_374_400_000, False),
        ("ts", 12, False),
        ("ts", 1_764_374_400_000.0, False),
        ("ts", True, False),
        ("ts", "2025", False),
        ("ts", 10**18, False),
    ],
)
def test_what_is_a_time_is_known_by_its_name_and_its_size(name: str, value: Any, shown: bool) -> None:
    assert (f"{name}_iso" in Look().at({name: value})) is shown


def test_a_field_of_that_name_is_never_written_over() -> None:
    assert Look().at({"ts": 1_764_374_400_000, "ts_iso": "theirs"})["ts_iso"] == "theirs"
    assert Look().at({"ts_iso": "theirs", "ts": 1_764_374_400_000})["ts_iso"] == "theirs"


def test_long_lists_and_wide_objects_end_with_how_much_there_is() -> None:
    assert Look(100).at(list(range(5000)))[-1] == "… (5,000 items)"
    assert Look(100).at({str(n): n for n in range(5000)})["…"] == "… (5,000 fields)"
