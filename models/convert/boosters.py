"""LightGBM and XGBoost: skl2onnx learns their classes from onnxmltools, and what that gets wrong is mended before."""

from __future__ import annotations

import importlib
from typing import Any, Final, NamedTuple

import numpy as np

from core.errors import ConversionError

NEEDED: Final = "it needs the extra convert: scikit-learn, skl2onnx, onnx, onnxmltools"
_ZIPMAP: Final = {"nocl": [True, False], "zipmap": [True, False, "columns"]}


class _Booster(NamedTuple):
    package: str
    converter: str
    options: dict[str, Any]


_BOOSTERS: Final = {
    "LGBMClassifier": _Booster("lightgbm", "lightgbm.operator_converters.LightGbm.convert_lightgbm", _ZIPMAP),
    "LGBMRegressor": _Booster("lightgbm", "lightgbm.operator_converters.LightGbm.convert_lightgbm", {"split": None}),
    "XGBClassifier": _Booster("xgboost", "xgboost.operator_converters.XGBoost.convert_xgboost", _ZIPMAP),
    "XGBRegressor": _Booster("xgboost", "xgboost.operator_converters.XGBoost.convert_xgboost", {}),
}


def register(part: Any, who: str) -> None:
    """Makes skl2onnx know the class of a trained booster, and the booster one that it converts rightly; does nothing to
    others.

    part: ours to change. who: the estimator that it is part of. Raises ConversionError where a package is missing.
    """
    kind = type(part)
    booster = _BOOSTERS.get(kind.__name__)
    if booster is None or not kind.__module__.startswith(booster.package):
        return
    from skl2onnx import update_registered_converter
    from skl2onnx.common import shape_calculator as shapes

    module, _, function = booster.converter.rpartition(".")
    try:
        converter = getattr(importlib.import_module(f"onnxmltools.convert.{module}"), function)
    except ImportError as error:
        raise ConversionError(f"{who} can't be converted: {NEEDED} ({error.name} is missing)") from None
    if booster.package == "xgboost":
        part.get_booster().feature_names = None  # the converter wants them to be f0, f1, ...
    else:
        part._Booster = _Float32Booster(part.booster_.dump_model())
    classifier = booster.options is _ZIPMAP
    update_registered_converter(
        kind,
        f"{booster.package}{kind.__name__}",
        shapes.calculate_linear_classifier_output_shapes
        if classifier
        else shapes.calculate_linear_regressor_output_shapes,
        converter,
        options=booster.options,
    )


class _Float32Booster:
    """A LightGBM model whose splits compare float32 as it compares float64.

    x <= t for a float32 x is x <= t rounded down to a float32. The converter rounds to the nearest: values that lie on
    a threshold, as those of a grid do, take the other way then.
    """

    is_mock = True
    """The converter takes what dump_model() says, then."""

    def __init__(self, dump: dict[str, Any]) -> None:
        nodes = [tree["tree_structure"] for tree in dump["tree_info"]]
        while nodes:
            node = nodes.pop()
            if node.get("decision_type") == "<=":
                node["threshold"] = _down(float(node["threshold"]))
            nodes += [node[side] for side in ("left_child", "right_child") if side in node]
        self._dump = dump

    def dump_model(self) -> dict[str, Any]:
        """The trees."""
        return self._dump


def _down(threshold: float) -> float:
    nearest = np.float32(threshold)
    return float(nearest if float(nearest) <= threshold else np.nextafter(nearest, np.float32(-np.inf)))
