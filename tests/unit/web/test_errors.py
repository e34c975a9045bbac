"""Every error of ours has a status, and tells its sender what to do without repeating what was sent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from aiokafka.errors import KafkaConnectionError
from pydantic import ValidationError

from core.errors import HomunculusError, ModelNotFoundError, RequestRefusedError, TaskError
from core.events import Action
from web import errors as subject
from web.errors import RequestError, explain, status_of


def descendants(kind: type[Exception]) -> Iterator[type[Exception]]:
    for child in kind.__subclasses__():
        yield child
        yield from descendants(child)


@pytest.mark.parametrize("kind", [HomunculusError, *descendants(HomunculusError)], ids=lambda kind: kind.__name__)
def test_every_error_of_ours_has_a_status(kind: type[Exception]) -> None:
    assert status_of(kind.__new__(kind)) in range(400, 600)


@pytest.mark.parametrize("kind", list(descendants(RequestError)), ids=lambda kind: kind.__name__)
def test_what_is_wrong_with_a_request_is_never_left_to_the_general_rule(kind: type[Exception]) -> None:
    assert kind in subject.STATUS


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelNotFoundError("x"), 404),
        (RequestRefusedError("x"), 409),
        (TaskError("x"), 503),
        (KafkaConnectionError("x"), 503),
        (TimeoutError(), 504),
        (ValueError("x"), None),
        (AssertionError("x"), None),
    ],
)
def test_the_closest_class_counts_and_what_nobody_expected_has_none(error: Exception, status: int | None) -> None:
    assert status_of(error) == status


def test_a_body_that_is_refused_is_explained_by_field_and_never_repeated() -> None:
    with pytest.raises(ValidationError) as refused:
        Action.model_validate({"version": "hush hush", "share": 7, "nonsense": "hush hush"})
    words = explain(refused.value)
    assert "version" in words
    assert "share" in words
    assert "nonsense" in words
    assert "hush" not in words
