"""What a manifest says of feedback: that a version asks for it, how long it may take, and what signals mean."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

LABEL: Final = "label"
CORRECTION: Final = "correction"
MOST_S: Final = 10 * 365.25 * 86_400


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Signal(_Part):
    """What a signal means where nobody has said more."""

    label: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    min_score: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """A weaker signal, or one without a score, means nothing."""


def _long_form(given: Any) -> Any:
    return {"label": given} if isinstance(given, str) else given


SignalName = Annotated[str, StringConstraints(min_length=1, max_length=50)]


class Awaited(_Part):
    """With it in its manifest, a version's answers are remembered until they can't be judged any more."""

    horizon: Annotated[float, Field(gt=0, le=MOST_S)]
    """Seconds of event time after an event for which feedback about it counts."""
    signals: dict[SignalName, Annotated[Signal, BeforeValidator(_long_form)]] = Field(default_factory=dict)
    """Type of feedback -> the label that it means, {"click": "yes"} or {"dwell": {"label": "yes", "min_score": 30}}.
    Other signals are counted, and mean nothing."""

    def check(self, labels: Collection[str]) -> None:
        """Raises ValueError where it doesn't fit a version with these labels; regressors have none."""
        for name, signal in self.signals.items():
            if name in (LABEL, CORRECTION):
                raise ValueError(f"feedback.signals names {name!r}, which says its label itself")
            if signal.label not in labels:
                raise ValueError(f"feedback.signals.{name} means {signal.label!r}, but labels are {list(labels)}")
