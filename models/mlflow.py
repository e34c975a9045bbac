"""An MLflow model folder: which of its files is the ONNX model, and what its signature calls the columns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from core.errors import ManifestError
from models.folder import plain

MLMODEL: Final = "MLmodel"


@dataclass(frozen=True, slots=True)
class MlflowModel:
    """What a folder's MLmodel says. Make it with MlflowModel.read."""

    onnx: Path
    columns: tuple[str, ...]
    """The signature's inputs, in order; none where it has no names."""
    made_by: str

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raises ManifestError where the folder can't be read, or has no ONNX model: it says what to do."""
        try:
            import yaml
        except ImportError:
            raise ManifestError("an MLflow model is read with the package pyyaml: install it (extra convert)") from None
        where = f"{folder.name}/{MLMODEL}"
        try:
            said = yaml.safe_load((folder / MLMODEL).read_text("utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ManifestError(f"{where} can't be read: {error}") from error
        flavors = said.get("flavors") if isinstance(said, dict) else None
        if not isinstance(flavors, dict):
            raise ManifestError(f"{where} names no flavors")
        onnx = flavors.get("onnx")
        if not isinstance(onnx, dict):
            raise ManifestError(_no_onnx(where, folder, flavors))
        file = str(onnx.get("data"))
        if not plain(file) or not (folder / file).is_file():
            raise ManifestError(f"{where}: its onnx flavor's data is {file!r}, which is no file in the folder")
        version, run = said.get("mlflow_version"), said.get("run_id")
        made_by = f"MLflow{f' {version}' if version else ''}{f', run {run}' if run else ''}"
        return cls(folder / file, _columns(said.get("signature"), where), made_by)


def _columns(signature: Any, where: str) -> tuple[str, ...]:
    text = signature.get("inputs") if isinstance(signature, dict) else None
    if text is None:
        return ()
    try:
        columns = json.loads(text) if isinstance(text, str) else text
        return tuple(str(column["name"]) for column in columns if column.get("name"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ManifestError(f"{where}: its signature's inputs can't be read: {error!r}") from error


def _no_onnx(where: str, folder: Path, flavors: dict[Any, Any]) -> str:
    names = sorted(str(name) for name in flavors if name != "python_function")
    there = f"{where} has the flavors {', '.join(names) or 'python_function'}, and only onnx runs here: "
    for name in ("sklearn", "lightgbm", "xgboost"):
        if name in flavors:
            return (
                f"{there}convert it in Python, models.convert.convert(mlflow.{name}.load_model({str(folder)!r}), ...), "
                "or log it with mlflow.onnx.log_model"
            )
    return f"{there}export it to ONNX, and log it with mlflow.onnx.log_model, or add the .onnx file itself"
