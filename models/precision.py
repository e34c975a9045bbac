"""The same model computed more coarsely: another file of its folder, with what that costs and saves as measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from core.errors import ModelError

FP32: Final = "fp32"
"""What model.onnx is called, whatever it computes in: what the others are compared with."""


class Precision(BaseModel):
    """One of a version's precisions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    """Path inside the folder."""
    max_error: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Largest absolute difference of a score (a probability, or a regressor's value) from model.onnx's, over `rows`."""
    rows: Annotated[int, Field(ge=0)] = 0
    """Rows that error was measured on."""
    latency: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Seconds of a run of 64 rows on one core of the machine that made it: for comparing precisions, not machines."""
    bytes: Annotated[int, Field(ge=0)] | None = None
    """Size of its weights."""

    def __str__(self) -> str:
        said = [f"error {self.max_error:.3g}"]
        if self.latency is not None:
            said.append(f"{1e3 * self.latency:.3g} ms")
        return ", ".join(said)


def named(name: str, offered: Mapping[str, Precision], who: str) -> Precision:
    """The precision of this name. Raises ModelError that names those there are."""
    if name not in offered:
        raise ModelError(f"{who} has no precision {name!r}; it has {told(offered)}")
    return offered[name]


def chosen(
    offered: Mapping[str, Precision], who: str, max_error: float | None = None, max_latency: float | None = None
) -> str:
    """The precision that a constraint means: within a latency the most exact one, else the quickest within the error.

    max_latency: seconds. Raises ModelError where none is within both, or none was measured.
    """
    within = {
        name: one
        for name, one in offered.items()
        if (max_error is None or one.max_error <= max_error)
        and (max_latency is None or (one.latency is not None and one.latency <= max_latency))
    }
    if not within:
        bounds = [] if max_error is None else [f"an error of at most {max_error:g}"]
        bounds += [] if max_latency is None else [f"at most {1e3 * max_latency:g} ms"]
        raise ModelError(f"{who} has no precision with {' and '.join(bounds)}; it has {told(offered)}")
    if max_latency is not None:
        return min(within, key=lambda name: (within[name].max_error, _seconds(within[name])))
    return min(within, key=lambda name: (_seconds(within[name]), within[name].max_error))


def told(offered: Mapping[str, Precision]) -> str:
    """All of them, in words."""
    return ", ".join(f"{name} ({one})" for name, one in offered.items())


def _seconds(one: Precision) -> float:
    return float("inf") if one.latency is None else one.latency
