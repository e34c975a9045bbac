"""What the drift benchmark has found, as the two tables of docs/drift.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from benchmarks.registry import Result

RARE: Final = 0.1
"""Of the trials: found in fewer, a delay says nothing."""


def tables(alarms: Sequence[Result], delays: Sequence[Result]) -> str:
    """Markdown."""
    return "\n".join([*_alarms(alarms), "", *_delays(delays), ""])


def _alarms(results: Sequence[Result]) -> Iterable[str]:
    kinds = list(results[0].parts)
    yield _row(["false alarms in 10 million", *(f"`{kind}`" for kind in kinds)])
    yield _rule(len(kinds) + 1)
    for result in results:
        yield _row(
            [_shape(result.name.removeprefix("drift_false_alarms_")), *(f"{result.parts[k]:.0f}" for k in kinds)]
        )
    yield ""
    yield _row(["answers between two, at least (95 %)", *(f"`{kind}`" for kind in kinds)])
    yield _rule(len(kinds) + 1)
    for result in results:
        between: Mapping[str, int] = result.conditions["records_between_at_least"]
        yield _row([_shape(result.name.removeprefix("drift_false_alarms_")), *(f"{between[k]:,}" for k in kinds)])


def _delays(results: Sequence[Result]) -> Iterable[str]:
    kinds = [kind for kind, told in results[0].conditions.items() if isinstance(told, dict)]
    yield _row(["answers", "change", *(f"`{kind}`" for kind in kinds)])
    yield _rule(len(kinds) + 2)
    for result in results:
        shape, what = result.name.removeprefix("drift_delay_").split(": ", 1)
        yield _row([_shape(shape), what, *(_delay(result.conditions[kind]) for kind in kinds)])


def _delay(told: Mapping[str, Any]) -> str:
    found = told["found"]
    if not found:
        return "never"
    share = f"[{100 * found:.1f}%]"
    if found < RARE:
        return share
    delay = f"{told['median']:,.0f} ({told['p99']:,.0f})"
    return delay if found == 1 else f"{delay} {share}"


def _shape(name: str) -> str:
    return name.replace(", AR .9", ", AR")


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(columns: int) -> str:
    return "|---" * columns + "|"
