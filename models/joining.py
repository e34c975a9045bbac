"""Feedback joined to the answers that it is about: whatever comes first, comes twice or is corrected, the sums of
outcomes are those of the newest truth. Pure: no table, no topic.

The state of an event are the answers to it and what it was told; nothing depends on the order in which these came.
Told of the highest rank wins: a correction over a label, a label over a signal; of one rank the newest by its time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from core.errors import FeedbackError
from models.drift.outcomes import Outcome
from models.remembered import Answer, Asked, Remembered, Told, Truth

MOST_TOLD: Final = 16
"""What is kept of the feedback about an event: of more, the lowest in rank goes, and is not missed."""
MOST_MODELS: Final = 8
"""Models whose answers to one event are kept."""
CLOSE: Final = 0.01
"""A regressor's value is right within so much of the true one, as two versions agree."""
LEAST: Final = 1e-15
"""A probability counts as this at least in the log loss, which 0 would make endless for ever."""
MOST_LOSS: Final = 1e30


class Fate(StrEnum):
    """What became of feedback, or of an answer."""

    JOINED = "joined"
    """The answer has its label."""
    CORRECTED = "corrected"
    """It has another one than before."""
    CONFIRMED = "confirmed"
    """It says what is known."""
    OVERRULED = "overruled"
    """Something of higher rank has said otherwise."""
    SIGNAL = "signal"
    """It means no label."""
    REPEATED = "repeated"
    """Its id has been there: nothing changes."""
    WAITS = "waits"
    """Nobody has answered its event yet."""
    LATE = "late"
    """Of after the horizon."""
    REFUSED = "refused"
    """It says what the version can't have answered."""
    UNASKED = "unasked"
    """Nothing that is live awaits feedback, or the model that it names doesn't."""
    FOUND = "found"
    """It has waited, and its event is answered."""
    FORGOTTEN = "forgotten"
    """It has waited for its horizon, and nobody has answered its event; or it came after its end."""
    DOUBLED = "doubled"
    """An event that has an answer of this model was answered again: the first one counts."""


class Refused(NamedTuple):
    """Feedback that is of no use."""

    told: Told
    fate: Fate
    why: FeedbackError
    end: int
    """Event time up to which it would have counted, ms since epoch."""


class Judged(NamedTuple):
    """One outcome, and whose."""

    asked: Asked
    outcome: Outcome
    right: bool
    loss: float
    """-ln of the true label's probability; of regressors the squared error."""


class Step(NamedTuple):
    """What one answer, or one piece of feedback, has led to."""

    memory: Remembered | None
    """As it is now; None: as it was."""
    fates: tuple[Fate, ...]
    judged: tuple[Judged, ...] = ()
    refused: tuple[Refused, ...] = ()


NOTHING: Final = Remembered(0)


def tell(memory: Remembered | None, told: Told, known: Mapping[str, Asked], horizon: int | None) -> Step:
    """Feedback about an event. known: reference -> version, of all answers; horizon: ms that it may wait for an answer;
    None: nothing that it could wait for is live.

    Raises FeedbackError where no version that has answered can have answered so.
    """
    before = memory or NOTHING
    if any(one.id == told.id for one in before.told):
        return Step(None, (Fate.REPEATED,))
    about = [one for one in before.answers if told.model in (None, known[one.asked].model)]
    kept = _kept(before.told, told)
    if not about:
        if horizon is None:
            return Step(None, (Fate.UNASKED,))
        return Step(Remembered(max(before.due, told.ts + horizon), before.answers, kept), (Fate.WAITS,))
    in_time = [one for one in about if told.ts <= one.ts + known[one.asked].horizon]
    if not in_time:
        end = max(one.ts + known[one.asked].horizon for one in about)
        return Step(None, (Fate.LATE,), refused=(_late(told, end),))
    _check(told, [known[one.asked] for one in in_time])
    judged: list[Judged] = []
    fates = set()
    for one in in_time:
        asked = known[one.asked]
        was, now = _truth(one, before.told, asked), _truth(one, kept, asked)
        judged += _changed(one, asked, was, now)
        fates.add(_fate(told, asked, was, now))
    return Step(Remembered(before.due, before.answers, kept), tuple(sorted(fates)), tuple(judged))


def answer(memory: Remembered | None, given: Answer, known: Mapping[str, Asked]) -> Step:
    """A version's answer to an event. known: reference -> version, of all answers, this one too."""
    before, asked = memory or NOTHING, known[given.asked]
    models = [known[one.asked].model for one in before.answers]
    if asked.model in models or len(models) == MOST_MODELS:
        return Step(None, (Fate.DOUBLED,))
    end = given.ts + asked.horizon
    kept: list[Told] = []
    refused: list[Refused] = []
    fates: list[Fate] = []
    for told in before.told:
        if told.model not in (None, asked.model) or (models and told.model is None):
            kept.append(told)  # another one's, or another one's too
            continue
        fates.append(Fate.FOUND)
        if told.ts > end:
            refused.append(_late(told, end))
            continue
        try:
            _check(told, [asked])
            kept.append(told)
        except FeedbackError as why:
            refused.append(Refused(told, Fate.REFUSED, why, end))
    after = Remembered(max(before.due, end), (*before.answers, given), tuple(kept))
    truth = _truth(given, after.told, asked)
    fates += [one.fate for one in refused]
    if truth is not None:
        fates.append(Fate.JOINED)
    return Step(after, tuple(fates), tuple(_changed(given, asked, None, truth)), tuple(refused))


def _late(told: Told, end: int) -> Refused:
    return Refused(told, Fate.LATE, FeedbackError(f"it is {told.ts - end} ms later than its horizon ends"), end)


def _check(told: Told, versions: list[Asked]) -> None:
    """Raises the first one's FeedbackError where it means nothing to any of them."""
    errors = []
    for asked in versions:
        try:
            asked.meaning(told)
            return
        except FeedbackError as error:
            errors.append(error)
    raise errors[0]


def _truth(given: Answer, told: tuple[Told, ...], asked: Asked) -> Truth | None:
    """What the answer should have been, as far as it is known."""
    best: tuple[int, int, str] | None = None
    truth: Truth | None = None
    for one in told:
        if one.model not in (None, asked.model) or one.ts > given.ts + asked.horizon:
            continue
        try:
            meaning = asked.meaning(one)
        except FeedbackError:
            continue  # another model's
        if meaning is not None and (best is None or one.rank > best):
            best, truth = one.rank, meaning
    return truth


def _fate(told: Told, asked: Asked, was: Truth | None, now: Truth | None) -> Fate:
    try:
        meaning = asked.meaning(told)
    except FeedbackError:
        meaning = None
    if meaning is None:
        return Fate.SIGNAL
    if was is None:
        return Fate.JOINED
    if now != was:
        return Fate.CORRECTED
    return Fate.CONFIRMED if meaning == now else Fate.OVERRULED


def _kept(told: tuple[Told, ...], more: Told) -> tuple[Told, ...]:
    """With one more. Where that is too much the lowest in rank goes, of those that others of their kind stand above."""
    ranked = sorted((*told, more), key=lambda one: one.rank, reverse=True)
    if len(ranked) <= MOST_TOLD:
        return tuple(ranked)
    first: dict[tuple[str, str | None], Told] = {}
    for one in ranked:
        first.setdefault((one.type, one.model), one)
    spare = [one for one in ranked if first[one.type, one.model] is not one] or ranked
    return tuple(one for one in ranked if one is not spare[-1])


def _changed(given: Answer, asked: Asked, was: Truth | None, now: Truth | None) -> list[Judged]:
    if was == now:
        return []
    return [_judged(given, asked, truth, weight) for truth, weight in ((was, -1), (now, 1)) if truth is not None]


def _judged(given: Answer, asked: Asked, truth: Truth, weight: int) -> Judged:
    source = f"observations/{given.partition}/{given.offset}"
    scores = given.matrix(len(asked.labels))
    if not asked.labels:
        value = float(scores[0])
        right = abs(value - truth) <= CLOSE * max(1.0, abs(truth))
        outcome = Outcome(given.ts, source, 0, (value,), float(truth), weight)
        return Judged(asked, outcome, right, min((value - truth) ** 2, MOST_LOSS))
    label = int(truth)
    outcome = Outcome(given.ts, source, label, tuple(scores.tolist()), None, weight)
    return Judged(asked, outcome, int(scores.argmax()) == label, -math.log(max(float(scores[label]), LEAST)))
