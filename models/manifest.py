"""manifest.json: what a model version is, what fills its inputs, and what it must compute to go live."""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from core.errors import ManifestError
from core.events import ModelName, Version
from models.dtype import Dtype
from models.embedding import TOKENIZER, Embedding
from models.features import SESSION, Feature, RawFeature, SessionFeature, parse

MANIFEST: Final = "manifest.json"
MODEL: Final = "model.onnx"


def _one_spelling(name: str) -> str:
    """Checks a field's name inside a validator, where pydantic adds the place to a ValueError."""
    try:
        return parse(name).name
    except ManifestError as error:
        raise ValueError(str(error)) from None


FieldName = Annotated[str, AfterValidator(_one_spelling)]
Scalar = bool | float | str
"""One value of one field."""
Label = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
OnnxName = Annotated[str, StringConstraints(min_length=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class Kind(StrEnum):
    """What a model answers with."""

    CLASSIFIER = "classifier"
    REGRESSOR = "regressor"
    EMBEDDER = "embedder"
    """Makes texts vectors, and answers no observations."""

    @property
    def scores(self) -> bool:
        """Whether it answers observations."""
        return self in (Kind.CLASSIFIER, Kind.REGRESSOR)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", protected_namespaces=())


class InputField(_Part):
    """One column of an ONNX input."""

    name: FieldName
    """A raw feature, or a session feature of models/features.py; kept in its one spelling."""
    default: Scalar | None = None
    """Taken where the field is missing, null or not finite. "nan" is a default too, for models that know missing
    values. None: a raw feature is required; a session feature that has no value yet counts as 0.0."""

    @model_validator(mode="before")
    @classmethod
    def _long_form(cls, data: Any) -> Any:
        long = {"name": data} if isinstance(data, str) else data
        if isinstance(long, dict) and str(long.get("name")).startswith(SESSION) and long.get("default") is None:
            return {**long, "default": 0.0}
        return long

    @property
    def feature(self) -> Feature:
        """The name, taken apart."""
        return parse(self.name)

    @property
    def required(self) -> bool:
        """Whether an event without it can't be scored."""
        return self.default is None


class Input(_Part):
    """An ONNX input of shape (n, len(fields))."""

    dtype: Dtype = Dtype.FLOAT32
    fields: Annotated[tuple[InputField, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _defaults_fit(self) -> Self:
        for field in self.fields:
            session = isinstance(field.feature, SessionFeature)
            if session and self.dtype in (Dtype.STRING, Dtype.BOOL):
                raise ValueError(f"{field.name} is a number; it can't fill an input of {self.dtype}")
            if field.default is None:
                continue
            default = field.default
            missing = self.dtype.floating and str(default).lower() == "nan"
            if not missing and (not self.dtype.accepts(default) or default in (math.inf, -math.inf)):
                raise ValueError(f"default {default!r} of {field.name} is no {self.dtype}: {self.dtype.wanted}")
        return self

    def default(self, column: int) -> Scalar | None:
        """What fills a column's gaps, in the input's own type ("nan" as a number); None where it is required."""
        default = self.fields[column].default
        if default is None or self.dtype in (Dtype.STRING, Dtype.BOOL):
            return default
        return float(default) if self.dtype.floating else int(default)


class Interval(_Part):
    """A regressor's own doubt: an output (n, 2) with the lower and the upper bound of its value."""

    output: OnnxName
    widest: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """The width at which nothing is known: confidence falls from 1 at width 0 to 0 here."""


class Outputs(_Part):
    """Which ONNX output says what."""

    probabilities: OnnxName | None = None
    """Of classifiers: (n, C), rows sum to 1; with two labels also (n, 1) or (n,), the second label's probability."""
    value: OnnxName | None = None
    """Of regressors: (n, 1) or (n,)."""
    interval: Interval | None = None


class Decision(_Part):
    """A yes or no on every prediction: whether a label's probability, or a regressor's value, is above a bound."""

    label: Label | None = None
    """None for regressors."""
    above: Annotated[float, Field(allow_inf_nan=False)]


class Thresholds(_Part):
    """Where a prediction counts as doubtful, and where it counts as a yes."""

    low_confidence: Share = 0.7
    """Of the score in models/confidence.py, which is no probability: binary p = .922 gives .7."""
    decision: Decision | None = None


class Golden(_Part):
    """One example that the model must reproduce before it goes live."""

    inputs: dict[FieldName, Scalar | None]
    """Every field by name, raw and session, with the value it is filled with; null takes the default."""
    expected: Annotated[dict[str, Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1)]
    """label -> probability; {"value": v} for regressors."""
    tolerance: Annotated[float, Field(gt=0)] = 1e-4
    """Largest absolute difference."""


class Manifest(_Part):
    """A model version: names its files, its inputs, its outputs and what proves that it works."""

    format: Literal[1] = 1
    name: ModelName
    version: Version
    kind: Kind = Kind.CLASSIFIER
    inputs: dict[OnnxName, Input] = {}
    """Of models that score."""
    outputs: Outputs = Outputs()
    labels: tuple[Label, ...] = ()
    """Of classifiers, in the order of the probabilities' columns."""
    files: Annotated[dict[str, Sha256], Field(min_length=1)]
    """Path inside the folder, with /, -> sha256 in hex: every file but manifest.json."""
    thresholds: Thresholds = Thresholds()
    reference_confidence: tuple[Share, ...] = ()
    """Confidences on the model's own validation data: what drift is measured against."""
    golden: tuple[Golden, ...] = ()
    """Of models that score; an embedder's are in `embedding`."""
    embedding: Embedding | None = None
    """Of embedders."""
    licence: str | None = None
    made_by: str | None = None
    """What made it: program, data, date; free text."""

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if MODEL not in self.files:
            raise ValueError(f"files must name {MODEL}")
        if not self.kind.scores:
            self._check_embedding()
            return self
        if self.embedding is not None:
            raise ValueError(f"embedding belongs to an embedder, not to a {self.kind}")
        if not self.inputs:
            raise ValueError(f"a {self.kind} needs inputs")
        classifier = self.kind is Kind.CLASSIFIER
        if classifier and (self.outputs.probabilities is None or self.outputs.value or self.outputs.interval):
            raise ValueError("a classifier's outputs name its probabilities and nothing else")
        if not classifier and (self.outputs.value is None or self.outputs.probabilities):
            raise ValueError("a regressor's outputs name its value, perhaps an interval, and no probabilities")
        if classifier and len(self.labels) < 2:
            raise ValueError(f"a classifier needs two labels or more, got {list(self.labels)}")
        if len(set(self.labels)) < len(self.labels) or (self.labels and not classifier):
            raise ValueError("labels must differ from each other, and a regressor has none")
        decision = self.thresholds.decision
        if decision and decision.label not in (self.labels if classifier else (None,)):
            raise ValueError(f"thresholds.decision.label is {decision.label!r}, but labels are {list(self.labels)}")
        self._check_fields()
        return self

    def _check_embedding(self) -> None:
        if self.embedding is None:
            raise ValueError("an embedder needs embedding")
        if self.inputs or self.labels or self.golden or self.outputs != Outputs() or self.thresholds != Thresholds():
            raise ValueError("an embedder has neither inputs, outputs, labels and thresholds nor golden: see embedding")
        if TOKENIZER not in self.files:
            raise ValueError(f"files must name {TOKENIZER}")

    def _check_fields(self) -> None:
        wanted = {field.name for _, field in self.fields()}
        answers = set(self.labels) if self.kind is Kind.CLASSIFIER else {"value"}
        for index, example in enumerate(self.golden):
            if odd := wanted ^ example.inputs.keys():
                raise ValueError(f"golden[{index}].inputs and the inputs' fields differ in {sorted(odd)}")
            if odd := example.expected.keys() - answers:
                raise ValueError(f"golden[{index}].expected names {sorted(odd)}; the model answers {sorted(answers)}")
            for given, field in self.fields():
                value = example.inputs[field.name]
                if value is None and field.required:
                    raise ValueError(f"golden[{index}].inputs[{field.name!r}] is null and has no default")
                if value is not None and not given.dtype.accepts(value):
                    raise ValueError(f"golden[{index}].inputs[{field.name!r}] is {value!r}, no {given.dtype}")

    def fields(self) -> Iterator[tuple[Input, InputField]]:
        """Every column of every input, in order; a field may fill several."""
        return ((given, field) for given in self.inputs.values() for field in given.fields)

    @property
    def identity(self) -> str:
        """As logs and errors name it: name@version."""
        return f"{self.name}@{self.version}"

    @property
    def raw_fields(self) -> tuple[str, ...]:
        """The raw features that fill a column themselves, each once, in order."""
        return tuple(dict.fromkeys(f.name for _, f in self.fields() if isinstance(f.feature, RawFeature)))

    @property
    def session_features(self) -> tuple[SessionFeature, ...]:
        """What the sessions table must keep for this model, each once, in order."""
        return tuple(dict.fromkeys(f.feature for _, f in self.fields() if isinstance(f.feature, SessionFeature)))

    @classmethod
    def parse(cls, raw: bytes | str, where: str) -> Self:
        """Reads manifest.json's text. Raises ManifestError that begins with `where` and names each wrong place."""
        try:
            return cls.model_validate_json(raw)
        except ValidationError as error:
            raise ManifestError(f"{where}: {mistakes(error)}") from None

    @classmethod
    def read(cls, path: Path, where: str) -> Self:
        """Reads a manifest file. Raises ManifestError where there is none, or none that can be read."""
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise ManifestError(f"{where}: {path.name} can't be read: {error.strerror or error}") from error
        return cls.parse(raw, where)

    def write(self, folder: Path) -> Path:
        """Writes it into a model folder, as a person reads it. Returns the file."""
        path = folder / MANIFEST
        path.write_text(self.model_dump_json(indent=2, exclude_none=True) + "\n", encoding="utf-8")
        return path


def mistakes(error: ValidationError) -> str:
    """What pydantic found wrong, each with its place."""
    return "; ".join(
        f"{'.'.join(map(str, e['loc'])) or 'as a whole'}: {e['msg'].removeprefix('Value error, ')}"
        for e in error.errors(include_url=False)
    )
