"""How much a partition may have in its hands: every queue between the broker and the broker has a bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

MAX_UNFINISHED: Final = 4000
"""Records of a topic that may be at work."""
MAX_STAGED: Final = 20_000
"""Outputs that may wait for a commit, and finished records."""
MAX_BYTES: Final = 64 << 20
"""Of records at work in a topic, and again of outputs that wait: all partitions of a worker together."""
GOAL_S: Final = 4.0
"""What a commit may take: some more, and its requests and its transaction would time out."""
QUICK_S: Final = GOAL_S / 2
"""One that takes less may be followed by one twice as large."""
SOME: Final = 2000
"""Records that a commit of the whole worker may carry, whatever the one before carried."""
LEAST: Final = 50
"""And of one partition however slow the broker is."""
_SAMPLES: Final = 16

T = TypeVar("T")


def weigh(items: Sequence[T], value_of: Callable[[T], bytes | None]) -> int:
    """Bytes of the values of items, about: of many some are looked at, which is cheap and near enough."""
    step = len(items) // _SAMPLES or 1
    return step * sum(len(value_of(item) or b"") for item in items[::step])


class Quota:
    """What the next commit of a partition may carry, in finished records: twice what the last one did, and less where
    that took long. So a broker that turns slow gets no commit that outlasts its transaction."""

    def __init__(self) -> None:
        self._most = self._some = SOME
        self._finished = 0
        self._under_way: tuple[int, float] | None = None
        """Records of the commit under way, and when it took them."""

    @property
    def piece(self) -> int:
        """Records that should finish together at most."""
        return self._most if self._most < self._some else MAX_STAGED

    def full(self, now: float) -> bool:
        """Whether the next commit takes no more. now: monotonic."""
        most: float = self._most
        if self._under_way is not None and (lasts := now - self._under_way[1]) > GOAL_S:
            most = min(most, max(LEAST, self._under_way[0] * GOAL_S / lasts))
        return self._finished >= most

    def add(self, records: int) -> None:
        """So many have finished."""
        self._finished += records

    def take(self, now: float, partitions: int) -> None:
        """A commit takes all. partitions: of the worker."""
        self._under_way, self._finished = (self._finished, now), 0
        self._some = max(LEAST, SOME // partitions)

    def committed(self, now: float) -> None:
        """It has ended."""
        if self._under_way is None:
            return  # everything has begun anew meanwhile
        (records, began), self._under_way = self._under_way, None
        if (lasted := now - began) > GOAL_S:
            self._most = max(LEAST, int(records * GOAL_S / lasted))
        elif lasted > QUICK_S:
            self._most = min(MAX_STAGED, max(self._some, records))
        else:
            self._most = min(MAX_STAGED, max(self._some, 2 * records, self._most // 2))

    def failed(self) -> None:
        """It has failed, perhaps since it was too much, and everything begins anew."""
        self._under_way, self._finished = None, 0
        self._most = max(LEAST, self._most // 8)
