"""The versions of a model side by side, from what workers tell."""

from __future__ import annotations

from typing import Any

from models.comparison import Comparison, compare
from models.status import Status, read


def told(revision: int = 4, canary: dict[str, Any] | None = None, **more: Any) -> Status:
    """A worker's words, as it puts them on model-status."""
    active = {"version": "1", "role": "active", "since": 1000, "sha256": "ab", "figures": {"answers": 90}}
    found = read(active | {"revision": revision, "wanted": "1"} | ({"canary": canary} if canary else {}) | more)
    assert found is not None
    return found


def canary(since: int, share: float = 0.1, **figures: Any) -> dict[str, Any]:
    return {"version": "2", "role": "canary", "since": since, "sha256": "cd", "share": share, "figures": figures}


def row(found: Comparison, version: str) -> Any:
    return next(side for side in found.sides if side.version == version)


def test_the_figures_of_all_workers_add_up() -> None:
    one = canary(3000, answers=8, failures=2, confidence=6.0, confident=8, low=2, compared=8, agreed=6, p99_s=0.01)
    other = canary(2000, answers=10, compared=2, agreed=2, dropped=8, p99_s=0.03)
    found = compare({"a": told(canary=one), "b": told(canary=other)})
    assert [(side.role, side.version, side.share) for side in found.sides] == [
        ("active", "1", 0.9),
        ("canary", "2", 0.1),
    ]
    second = row(found, "2")
    assert (second.error, second.confidence, second.low, second.agreement) == (0.1, 0.75, 0.25, 0.8)
    assert (second.figures.dropped, second.figures.p99_s, second.since, second.on) == (8, 0.03, 2000, ["a", "b"])
    assert row(found, "1").figures.answers == 180
    assert found.canary("2") == second
    assert found.canary("1") is None


def test_workers_that_are_behind_are_named_and_not_counted() -> None:
    found = compare({"a": told(revision=5, canary=canary(1, answers=7)), "b": told(canary=canary(1, answers=900))})
    assert (found.revision, found.behind) == (5, ["b"])
    assert row(found, "2").figures.answers == 7
    assert row(found, "2").on == ["a"]


def test_a_shadow_has_no_share_and_nothing_counted_is_no_figure() -> None:
    shadow = {"version": "3", "role": "shadow", "since": 1}
    found = compare({"a": told(shadow=[shadow], frozen=True)})
    side = row(found, "3")
    assert found.frozen
    assert (side.share, side.error, side.confidence, side.low, side.agreement) == (None,) * 5


def test_a_model_that_is_unloaded_has_no_sides() -> None:
    assert compare({"a": Status(revision=9)}).sides == []


def test_a_form_that_this_release_does_not_know_is_left_out() -> None:
    assert read(None) is None
    assert read({"version": "1"}) is None
    assert read({"revision": 1, "shadow": ["2"]}) is None
    later = read({"revision": 1, "wanted": "1", "something_new": {"x": 1}})
    assert later is not None
    assert later.active is None
