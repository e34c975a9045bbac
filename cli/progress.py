"""How far a replay of dead letters is in one partition, small enough for the metadata of a group's offset."""

from __future__ import annotations

from typing import Final

from core.errors import HomunculusError

MOST: Final = 4000
"""Characters; brokers keep 4,096 unless told otherwise (offset.metadata.max.bytes)."""


class Progress:
    """Every letter below `end` has been replayed, but for those in `left`: runs [first, last] that a filter left out.

    Letters are told in the order of their offsets, by replayed() and kept(). Offsets between letters are commit marks
    or compacted away, so a run may reach over them.
    """

    def __init__(self, end: int = 0, left: tuple[tuple[int, int], ...] = ()) -> None:
        self.end = end
        self.left = left
        self._runs: list[tuple[int, int]] = []
        self._open = False
        self._at = -1

    @classmethod
    def decode(cls, offset: int, metadata: str) -> Progress:
        """From a committed offset (negative: none yet) and its metadata."""
        runs = [run.split("-") for run in metadata.split(",") if run]
        return cls(max(offset, 0), tuple((int(first, 36), int(last, 36)) for first, last in runs))

    @property
    def start(self) -> int:
        """Where to read from."""
        return self.left[0][0] if self.left else self.end

    def waits(self, offset: int) -> bool:
        """Whether the letter at this offset has not been replayed yet."""
        return offset >= self.end or any(first <= offset <= last for first, last in self.left)

    def replayed(self, offset: int) -> None:
        """This letter is replayed, now or before."""
        self._open = False
        self._at = offset

    def kept(self, offset: int) -> None:
        """This letter waits for another time."""
        if self._open:
            self._runs[-1] = (self._runs[-1][0], offset)
        else:
            self._runs.append((offset, offset))
        self._open = True
        self._at = offset

    def encode(self) -> tuple[int, str]:
        """What to commit, up to the letter told last. Raises HomunculusError when too many runs are left out."""
        behind = [(max(first, self._at + 1), last) for first, last in self.left if last > self._at]
        text = ",".join(f"{_base36(first)}-{_base36(last)}" for first, last in [*self._runs, *behind])
        if len(text) > MOST:
            raise HomunculusError(
                "too many letters between the replayed ones are left out to remember which: replay without --source "
                "and --error, or look at fewer letters at a time"
            )
        return max(self.end, self._at + 1), text


def _base36(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    text = ""
    while True:
        number, rest = divmod(number, 36)
        text = digits[rest] + text
        if not number:
            return text
