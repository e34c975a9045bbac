"""Two releases of one application, whose table changed its type: `before` counts, `after` also keeps who was last."""

from __future__ import annotations

from typing import Final

import msgspec

from core.topics import Direction, TopicSpec


class Order(msgspec.Struct):
    """What a session orders."""

    id: str
    session: str


class Counted(msgspec.Struct):
    """How many orders a session has, this one included."""

    session: str
    number: int
    release: str


ORDERS: Final = TopicSpec("orders", "session", Order, Direction.IN)
COUNTED: Final = TopicSpec("counted", "session", Counted, Direction.OUT)
