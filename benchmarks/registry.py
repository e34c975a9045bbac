"""What a benchmark is: a function that yields results; its name and first line are what a reader sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from benchmarks.lab import Lab

Benchmark = Callable[["Lab"], Iterator["Result"]]

BENCHMARKS: Final[dict[str, Benchmark]] = {}
"""Name -> benchmark, in the order in which they run."""


@dataclass(frozen=True, slots=True)
class Result:
    """One measured figure. `goal` is what it must reach, `parts` what it is made of."""

    name: str
    value: float | None
    """None where the run couldn't measure it; `conditions` then says why."""
    unit: str
    conditions: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, float] = field(default_factory=dict)
    goal: str | None = None

    def line(self) -> str:
        """The result as one line of JSON; numbers keep what is significant in a measurement."""
        shown = {"name": self.name, "value": _short(self.value), "unit": self.unit, "conditions": dict(self.conditions)}
        if self.parts:
            shown["parts"] = {name: _short(value) for name, value in self.parts.items()}
        if self.goal is not None:
            shown["goal"] = self.goal
        return msgspec.json.encode(shown).decode()


def benchmark(run: Benchmark) -> Benchmark:
    """Registers a benchmark under its function's name. Its docstring's first line says what is measured."""
    if not run.__doc__:
        raise TypeError(f"benchmark {run.__name__} needs a docstring: its first line tells what is measured")
    BENCHMARKS[run.__name__] = run
    return run


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}") if abs(value) < 10_000 else round(value)
