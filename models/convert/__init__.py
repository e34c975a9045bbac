"""Trained estimators of scikit-learn, LightGBM and XGBoost become model folders that compute the same.

Needs the extra `convert`, where models are trained; no worker imports it.
"""

from __future__ import annotations

from models.convert.columns import rows_of
from models.convert.estimator import convert
from models.convert.pickles import unpickled
from models.convert.precisions import add_precisions

__all__ = ["add_precisions", "convert", "rows_of", "unpickled"]
