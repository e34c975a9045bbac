"""An estimator as an ONNX graph, by skl2onnx, with onnxmltools' converters for LightGBM and XGBoost in it."""

from __future__ import annotations

import copy
import warnings
from typing import Any, Final

from core.errors import ConversionError
from models.convert.boosters import NEEDED, register
from models.convert.columns import Columns
from models.dtype import Dtype

OPSETS: Final = {"": 17, "ai.onnx.ml": 3}
"""The newest that all of the converters write."""


def graph_of(estimator: Any, columns: Columns, name: str, classifier: bool) -> bytes:
    """The trained estimator as ONNX: probabilities, or a value, as tensors. The same estimator gives the same bytes.

    Raises ConversionError that names the estimator.
    """
    who = type(estimator).__name__
    try:
        from skl2onnx import convert_sklearn
    except ImportError as error:
        raise ConversionError(f"{who} can't be converted: {NEEDED} ({error.name} is missing)") from None
    estimator = copy.deepcopy(estimator)
    for part in _parts(estimator):
        register(part, who)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of converters, about numpy and themselves
            graph = convert_sklearn(
                estimator,
                name=name,
                initial_types=_types(columns),
                options={id(estimator): {"zipmap": False}} if classifier else None,
                target_opset=OPSETS,
            )
    except Exception as error:  # each converter has its own
        said = " ".join(str(error).split())
        said = f"{said[:300]}…" if len(said) > 300 else said
        raise ConversionError(f"{who} can't be converted to ONNX: {type(error).__name__}: {said}") from error
    return bytes(graph.SerializeToString())


def _types(columns: Columns) -> list[tuple[str, Any]]:
    from skl2onnx.common import data_types

    kinds = {
        Dtype.FLOAT32: data_types.FloatTensorType,
        Dtype.INT64: data_types.Int64TensorType,
        Dtype.STRING: data_types.StringTensorType,
    }
    return [(name, kinds[given.dtype]([None, len(given.fields)])) for name, given in columns.inputs.items()]


def _parts(estimator: Any) -> list[Any]:
    """It, and the steps of the pipeline that it is."""
    return [estimator, *(step for _, step in getattr(estimator, "steps", ()))]
