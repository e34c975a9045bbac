"""What a version has achieved where its answers were known: the manifest's `performance`, which later labels are held
against."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from models.part import Finite, Part, Share

_Positive = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_OF_CLASSIFIERS: Final = ("accuracy", "auc", "log_loss", "ece")
_OF_REGRESSORS: Final = ("mae", "rmse", "bias")


class Quality(Part):
    """Figures over some labelled rows; null where there is none, as of a regressor's accuracy."""

    rows: Annotated[int, Field(ge=1)]
    accuracy: Share | None = None
    auc: Share | None = None
    """Of the second of two labels; of more, the mean over labels of each against the rest."""
    log_loss: _Positive | None = None
    """Nats a row."""
    ece: Share | None = None
    """Expected calibration error of the best label's probability, in 15 bins of one width."""
    mae: _Positive | None = None
    rmse: _Positive | None = None
    bias: Finite | None = None
    """Mean of value - truth."""

    def check(self, classifier: bool) -> None:
        """Raises ValueError where it has figures that such a model hasn't."""
        figures = _OF_REGRESSORS if classifier else _OF_CLASSIFIERS
        if odd := [name for name in figures if getattr(self, name) is not None]:
            raise ValueError(f"performance.measured has {', '.join(odd)}, which no such model has")


class Performance(Part):
    """How labels that come back are judged."""

    window_s: Annotated[float, Field(ge=1, le=366 * 86_400)] = 3600.0
    """Seconds of event time that figures are kept for; windows with too few labels are judged together."""
    labels_after_s: Annotated[float, Field(ge=0, le=3660 * 86_400)] = 0.0
    """Seconds of event time until an event's label is known whatever it is: what is known before may be of one kind."""
    measured: Quality | None = None
    """Null: the first windows are the reference."""
