"""Estimators out of files, from whoever is trusted: unpickling runs code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from core.errors import ConversionError


def unpickled(path: Path) -> Any:
    """What joblib or pickle have written. Only for files whose origin you trust. Raises ConversionError."""
    try:
        import joblib

        return joblib.load(path)  # reads plain pickles too
    except Exception as error:  # a pickle may raise whatever it likes
        raise ConversionError(f"{path.name} can't be unpickled: {error!r}") from error
