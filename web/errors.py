"""One table from error class to HTTP status: core/ and the engine know no HTTP."""

from __future__ import annotations

from typing import Final

from aiokafka.errors import KafkaError
from pydantic import ValidationError

from core.errors import (
    DecodeError,
    HomunculusError,
    KnowledgeAwayError,
    MigrationError,
    ModelError,
    ModelNotFoundError,
    NewerStateError,
    RecordError,
    RequestRefusedError,
    TaskError,
    UsageError,
)


class RequestError(HomunculusError):
    """The request can't be answered; its sender learns why."""


class MalformedError(RequestError):
    """A parameter or a body isn't what the route takes."""


class UnauthorizedError(RequestError):
    """No token, or one that we don't know."""


class ForbiddenError(RequestError):
    """The token, or where the request comes from, doesn't allow this."""


class UnknownError(RequestError):
    """There is no such table, key or model."""


class NotOpenError(RequestError):
    """The partition that holds the key is not open, here or anywhere that we know of: it will be in a moment."""


class BusyError(RequestError):
    """As many ask for this at the moment as the worker serves."""


class UnreachableError(RequestError):
    """The worker that holds the key doesn't answer: it will, or the group will give its partitions to others."""


class OwnerError(RequestError):
    """The worker that holds the key answers what can't be passed on."""


STATUS: Final[dict[type[Exception], int]] = {
    MalformedError: 400,
    DecodeError: 400,
    ValidationError: 400,
    UnauthorizedError: 401,
    ForbiddenError: 403,
    UnknownError: 404,
    ModelNotFoundError: 404,
    RequestRefusedError: 409,
    KnowledgeAwayError: 503,
    RecordError: 422,
    ModelError: 502,
    OwnerError: 502,
    NotOpenError: 503,
    BusyError: 503,
    UnreachableError: 503,
    TaskError: 503,
    KafkaError: 503,
    TimeoutError: 504,
    UsageError: 500,
    HomunculusError: 500,
}
"""The closest class of an error's own line counts; what isn't here is a fault of ours: 500, without its words."""

RETRY_AFTER_S: Final = 1
"""Seconds that a 503 asks its reader to wait."""


def status_of(error: Exception) -> int | None:
    """The status of an error, or None for one that nobody expected."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), None)


def explain(error: Exception) -> str:
    """What its sender is told: never a payload, never a key."""
    if isinstance(error, ValidationError):
        wrong = error.errors(include_input=False, include_url=False, include_context=False)
        return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'the body'}: {e['msg']}" for e in wrong)
    if isinstance(error, (NewerStateError, MigrationError)):
        return "the worker's release can't read this value: its log says why"
    if isinstance(error, KafkaError):
        return f"the broker did not take it ({type(error).__name__})"
    return str(error) or type(error).__name__
