"""What crosses the topic `scores`: columns that fit each other, or a reason why not."""

from __future__ import annotations

import msgspec
import numpy as np

from models.drift.answers import Answers, Scored, faults


def scored(partition: int, first: int, confidence: list[float]) -> Scored:
    """Answers of one slice, without features."""
    n = len(confidence)
    column = np.array(confidence, "<f4").tobytes()
    offsets = np.arange(first, first + n, dtype="<i8").tobytes()
    return Scored(partition, offsets, offsets, bytes(2 * n), column, column)


def test_only_the_records_that_cannot_be_are_left_out() -> None:
    good = scored(0, 5, [0.5, 0.25])
    short = msgspec.structs.replace(good, best=b"")
    nowhere = msgspec.structs.replace(good, partition=-1)
    odd = scored(0, 7, [0.5, float("nan")])
    found = faults([good, short, nowhere, odd, good], 0)
    assert {i: str(error) for i, error in found.items()} == {
        1: "the columns of the scores don't have 2 values each, with 0 features",
        2: "the scores are of partition -1, which can't be",
        3: "a confidence is not finite",
    }


def test_records_are_read_one_after_the_other() -> None:
    answers = Answers.of([scored(1, 5, [0.5, 0.25]), scored(0, 3, []), scored(0, 3, [1.0])], 0)
    assert [answers.source(i) for i in range(3)] == ["observations/1/5", "observations/1/6", "observations/0/3"]
    assert [answers.place(answers.source(i)) for i in range(3)] == [0, 1, 2]
