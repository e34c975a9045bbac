"""The vocabulary of fields: every name in it is understood, every other `session.` name is refused."""

from __future__ import annotations

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ManifestError
from models.features import WITHOUT_FIELD, Kind, RawFeature, SessionFeature, parse, vocabulary

raw_names = st.text(min_size=1, max_size=40).filter(lambda s: s == s.strip() and not s.startswith("session."))
half_lives = st.builds(operator.mul, st.integers(1, 10_000), st.sampled_from([1, 60, 3_600, 86_400]))


@st.composite
def session_features(draw: st.DrawFn) -> SessionFeature:
    kind = draw(st.sampled_from(Kind))
    if kind in WITHOUT_FIELD:
        return SessionFeature(kind)
    half_life = draw(half_lives) if kind is Kind.DECAYED_MEAN else None
    return SessionFeature(kind, draw(raw_names), half_life)


@given(feature=session_features() | raw_names.map(RawFeature))
def test_every_feature_is_read_back_from_its_name(feature: SessionFeature | RawFeature) -> None:
    assert parse(feature.name) == feature


@pytest.mark.parametrize(
    ("name", "feature"),
    [
        ("value", RawFeature("value")),
        ("sessions", RawFeature("sessions")),
        ("session.count", SessionFeature(Kind.COUNT)),
        ("session.mean.value", SessionFeature(Kind.MEAN, "value")),
        ("session.max.price.eur", SessionFeature(Kind.MAX, "price.eur")),
        ("session.decayed_mean.value@15m", SessionFeature(Kind.DECAYED_MEAN, "value", 900)),
        ("session.decayed_mean.a@b@7d", SessionFeature(Kind.DECAYED_MEAN, "a@b", 604_800)),
    ],
)
def test_names_mean_what_the_documentation_says(name: str, feature: SessionFeature | RawFeature) -> None:
    assert parse(name) == feature


def test_two_spellings_of_one_half_life_are_one_feature() -> None:
    spellings = {parse(f"session.decayed_mean.value@{h}") for h in ("86400s", "1440m", "24h", "1d")}
    assert [feature.name for feature in spellings] == ["session.decayed_mean.value@1d"]


@pytest.mark.parametrize(
    "name",
    [
        "session.",
        "session.counts",
        "session.count.value",
        "session.mean",
        "session.mean.",
        "session.mean.session.count",
        "session.decayed_mean.value",
        "session.decayed_mean.value@",
        "session.decayed_mean.value@0s",
        "session.decayed_mean.value@1.5h",
        "session.decayed_mean.value@3w",
        "session.decayed_mean.@15m",
    ],
)
def test_a_misspelt_session_feature_is_refused_with_the_list_of_those_that_exist(name: str) -> None:
    with pytest.raises(ManifestError) as refused:
        parse(name)
    assert name in str(refused.value)
    assert all(known in str(refused.value) for known in vocabulary())


@pytest.mark.parametrize("name", ["", " value", "value "])
def test_a_field_without_a_name_is_refused(name: str) -> None:
    with pytest.raises(ManifestError, match="blanks"):
        parse(name)
