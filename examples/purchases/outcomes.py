"""What became of each purchase, as a shop would tell it: a label on `feedback`, once it is known."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from core.events import Feedback, Observation
from examples.purchases.labels import HORIZON_MS, LAPSES, RETURNS


def outcomes(events: Sequence[Observation]) -> list[list[Feedback]]:
    """Place of each event, oldest first -> what is known with it: that a customer has returned, with their purchase on
    another day within 60; that one hasn't, with the first purchase of anybody once these are over.

    Every purchase has one label at most. What isn't known at the end of the stream is left out.
    """
    found: list[list[Feedback]] = [[] for _ in events]
    times = [event.ts for event in events]
    asked: dict[str, list[Observation]] = {}
    """Customer -> their purchases of the newest day that they came."""
    for place, event in enumerate(events):
        theirs = asked.setdefault(event.session, [])
        if theirs and event.ts > theirs[0].ts:
            _answer(found, times, theirs, event.ts, place)
            theirs.clear()
        theirs.append(event)
    for theirs in asked.values():
        _answer(found, times, theirs, None, len(events))
    return found


def _answer(
    found: list[list[Feedback]], times: Sequence[int], asked: Sequence[Observation], again: int | None, place: int
) -> None:
    """asked: purchases of one day of a customer, who came `again` with the event at that place, or never."""
    over = asked[0].ts + HORIZON_MS
    if again is not None and again <= over:
        found[place] += [_label(each, RETURNS, again) for each in asked]
    elif (known := bisect_left(times, over)) < len(times):
        found[known] += [_label(each, LAPSES, over) for each in asked]


def _label(event: Observation, label: str, ts: int) -> Feedback:
    return Feedback(
        id=f"{event.id}/60-days", session=event.session, ts=ts, event_id=event.id, type="label", label=label
    )
