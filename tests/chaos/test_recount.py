"""The judge of all the others: a lost, repeated or invented answer, or a state off by one, must not pass it."""

from __future__ import annotations

import json
import random
from collections import defaultdict

import pytest

from tests import tally
from tests.stream import EPOCH_MS, Record, Running, Sent

SENT = [Sent(f"e{n}", f"s{n % 7}", EPOCH_MS + n, float(random.Random(n).randrange(4))) for n in range(300)]


def answers() -> list[Record]:
    """What a worker answers that does everything right."""
    sessions: defaultdict[str, Running] = defaultdict(Running)
    records = []
    for offset, one in enumerate(SENT):
        sessions[one.session].add(one.f0)
        row = tally.row(sessions[one.session], one.f0)
        scores = {label: float(x * unit) for label, x, unit in zip(tally.LABELS, row, tally.SCALE, strict=False)}
        prediction = {
            "id": f"observations/0/{offset}",
            "event_id": one.id,
            "version": "1",
            "role": "active",
            "scores": scores,
        }
        records.append(Record("predictions", 0, offset, one.session.encode(), json.dumps(prediction).encode(), {}))
    return records


def changed(record: Record, **changes: object) -> Record:
    return record._replace(value=json.dumps(record.json | changes).encode())


def test_right_answers_pass_in_whatever_order_they_arrive() -> None:
    shuffled = answers()
    random.Random(1).shuffle(shuffled)
    tally.assert_state_of_each(shuffled, SENT)


def test_repeats_pass_only_where_they_are_allowed_and_only_under_the_same_id() -> None:
    records = answers()
    tally.assert_state_of_each([*records, records[7]], SENT, repeated=True)
    with pytest.raises(AssertionError, match="several predictions"):
        tally.assert_state_of_each([*records, records[7]], SENT)
    with pytest.raises(AssertionError, match="differ in their id"):
        tally.assert_state_of_each([*records, changed(records[7], id="other")], SENT, repeated=True)


def test_a_lost_and_an_invented_answer_are_found() -> None:
    records = answers()
    with pytest.raises(AssertionError, match="1 of 300 events have no prediction"):
        tally.assert_state_of_each(records[:-1], SENT)
    with pytest.raises(AssertionError, match="nobody sent"):
        tally.assert_state_of_each([*records, changed(records[0], event_id="ghost")], SENT)


@pytest.mark.parametrize("label", ["count", "sum", "mean", "last"])
def test_a_state_that_is_off_by_one_is_found(label: str) -> None:
    records = answers()
    scores = records[200].json["scores"]
    scores[label] += tally.SCALE[tally.LABELS.index(label)]
    with pytest.raises(AssertionError, match="another state than a recount"):
        tally.assert_state_of_each([*records[:200], changed(records[200], scores=scores), *records[201:]], SENT)
