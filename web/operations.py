"""What each route takes and gives: the types that its answers are made of are those that /openapi.json tells of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from aiohttp import web
from msgspec import Meta

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[web.StreamResponse]])

Flag = Annotated[str, Meta(pattern="^[01]$")]
JSON: Final = "application/json"


class Parameter(NamedTuple):
    """One of the query."""

    name: str
    kind: Any
    """Its type."""
    help: str
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One route, as far as it isn't told by its handler's docstring."""

    gives: Any = Any
    """Type of its answer."""
    status: int = 200
    media: str = JSON
    also: Mapping[int, Any] = field(default_factory=dict)
    """Status -> type of other answers than refusals; None: an answer without a body."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that an answer may have -> what they say."""
    parameters: tuple[Parameter, ...] = ()
    takes: Any = None
    """Type of its body; None: it takes none."""


OPERATIONS: Final[dict[Callable[..., Any], Operation]] = {}
"""Handler -> what it takes and gives. A route whose handler isn't here is not told of."""


def operation(told: Operation) -> Callable[[Handler], Handler]:
    """Tells of the route of a handler."""

    def tell(handler: Handler) -> Handler:
        OPERATIONS[handler] = told
        return handler

    return tell
