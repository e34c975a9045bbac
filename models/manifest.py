"""manifest.json: what a model version is, what fills its inputs, and what it must compute to go live."""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, ValidationError, model_validator

from core.errors import ManifestError
from core.events import PRECISION_PATTERN, ModelName, Version
from models.calibration import Calibration, Isotonic
from models.dtype import Dtype
from models.embedding import Embedding
from models.features import SESSION, Feature, RawFeature, SessionFeature, parse
from models.feedback import Awaited
from models.language import TEMPLATE, TOKENIZER, AdapterOf, Language
from models.part import Part, Share
from models.precision import FP32, Precision
from models.quality import Performance
from models.ranking import Ranking
from models.reading import Reading
from models.reference import CELLS, CategoryReference, FeatureReference

MANIFEST: Final = "manifest.json"
MODEL: Final = "model.onnx"
LARGEST: Final = 10_000_000
"""Bytes of a manifest.json, and of a store's list: a thousand golden examples of a hundred fields are 3 MB."""


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
PrecisionName = Annotated[str, StringConstraints(pattern=PRECISION_PATTERN)]


class Kind(StrEnum):
    """What a model answers with."""

    CLASSIFIER = "classifier"
    REGRESSOR = "regressor"
    DECODER = "decoder"
    """A language model: answers messages, not observations."""
    ADAPTER = "adapter"
    """Changes a language model, for the messages that name it."""
    EMBEDDER = "embedder"
    """Makes texts vectors, and answers no observations."""
    RERANKER = "reranker"
    """Scores how well passages answer a question, and answers no observations."""

    @property
    def scores(self) -> bool:
        """Whether it answers observations."""
        return self in (Kind.CLASSIFIER, Kind.REGRESSOR)


class InputField(Part):
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


class Input(Part):
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


class Interval(Part):
    """A regressor's own doubt: an output (n, 2) with the lower and the upper bound of its value."""

    output: OnnxName
    widest: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """The width at which nothing is known: confidence falls from 1 at width 0 to 0 here."""


class Outputs(Part):
    """Which ONNX output says what."""

    probabilities: OnnxName | None = None
    """Of classifiers: (n, C), rows sum to 1; with two labels also (n, 1) or (n,), the second label's probability."""
    value: OnnxName | None = None
    """Of regressors: (n, 1) or (n,)."""
    interval: Interval | None = None


class Decision(Part):
    """A yes or no on every prediction: whether a label's probability, or a regressor's value, is above a bound."""

    label: Label | None = None
    """None for regressors."""
    above: Annotated[float, Field(allow_inf_nan=False)]


class Thresholds(Part):
    """Where a prediction counts as doubtful, and where it counts as a yes."""

    low_confidence: Share = 0.7
    """Of the score in models/confidence.py, which is no probability: binary p = .922 gives .7."""
    decision: Decision | None = None


class Golden(Part):
    """One example that the model must reproduce before it goes live."""

    inputs: dict[FieldName, Scalar | None]
    """Every field by name, raw and session, with the value it is filled with; null takes the default."""
    expected: Annotated[dict[str, Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1)]
    """label -> probability; {"value": v} for regressors. The graph's own, before any calibration."""
    tolerance: Annotated[float, Field(gt=0)] = 1e-4
    """Largest absolute difference."""


class Manifest(Part):
    """A model version: names its files, its inputs, its outputs and what proves that it works."""

    format: Literal[1] = 1
    name: ModelName
    version: Version
    kind: Kind = Kind.CLASSIFIER
    inputs: dict[OnnxName, Input] = Field(default_factory=dict)
    """Of models that score."""
    reading: Reading | None = None
    """Of models that score a text by its tokens: their graph takes those, and the input is the text's."""
    outputs: Outputs = Outputs()
    labels: tuple[Label, ...] = ()
    """Of classifiers, in the order of the probabilities' columns."""
    files: Annotated[dict[str, Sha256], Field(min_length=1)]
    """Path inside the folder, with /, -> sha256 in hex: every file but manifest.json."""
    thresholds: Thresholds = Thresholds()
    reference_confidence: tuple[Share, ...] = ()
    """Confidences on the model's own validation data: what drift is measured against."""
    feedback: Awaited | None = None
    """What labels that come back are waited for; null: its answers are never judged."""
    features: dict[FieldName, FeatureReference] = Field(default_factory=dict)
    """What its inputs looked like, for those that are to be watched: raw features, which needn't fill an input, and
    session features that do."""
    calibration: Calibration | None = None
    """Of classifiers: what makes the graph's probabilities true. Answers, confidence, decisions and thresholds are
    about what comes out of it; golden examples about what goes in, so that a version can be calibrated without new
    ones."""
    performance: Performance | None = None
    """How labels that come back are judged; null: as a Performance without anything said."""
    golden: tuple[Golden, ...] = ()
    """Of models that score; a decoder's are in `language`, an embedder's in `embedding`, a reranker's in `ranking`."""
    precisions: dict[PrecisionName, Precision] = Field(default_factory=dict)
    """Name -> the same model in another file (models/precision.py). model.onnx is fp32; where it is named, then for its
    latency."""
    language: Language | None = None
    """Of decoders."""
    embedding: Embedding | None = None
    """Of embedders."""
    ranking: Ranking | None = None
    """Of rerankers."""
    adapter: AdapterOf | None = None
    """Of adapters."""
    licence: str | None = None
    made_by: str | None = None
    """What made it: program, data, date; free text."""

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if MODEL not in self.files:
            raise ValueError(f"files must name {MODEL}")
        if self.reading is not None:
            self._check_reading()
        if not self.kind.scores:
            self._check_texts()
            return self
        if any(part is not None for part in self._of_texts.values()):
            raise ValueError(
                "language belongs to a decoder, embedding to an embedder, adapter to an adapter, "
                f"ranking to a reranker; not to a {self.kind}"
            )
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
        self._check_watched(classifier)
        self._check_precisions()
        self._check_fields()
        self._check_features()
        return self

    def _check_watched(self, classifier: bool) -> None:
        if self.feedback is not None:
            self.feedback.check(self.labels)
        if isinstance(self.calibration, Isotonic) and len(self.labels) != 2:
            raise ValueError(f"an isotonic calibration is for two labels, and labels are {list(self.labels)}")
        if self.calibration and not classifier:
            raise ValueError("a regressor has no calibration")
        if self.performance and self.performance.measured:
            self.performance.measured.check(classifier)

    def _check_precisions(self) -> None:
        for name, one in self.precisions.items():
            if (one.file == MODEL) != (name == FP32):
                raise ValueError(f"precisions.{name}.file is {one.file!r}: {MODEL} is {FP32}, and nothing else is")
            if one.file not in self.files:
                raise ValueError(f"precisions.{name}.file is {one.file!r}, which files doesn't name")
        if len({one.file for one in self.precisions.values()}) < len(self.precisions):
            raise ValueError("two precisions have the same file")

    @property
    def _of_texts(self) -> dict[Kind, object]:
        """What each kind that scores nothing is described by."""
        return {
            Kind.DECODER: self.language,
            Kind.EMBEDDER: self.embedding,
            Kind.ADAPTER: self.adapter,
            Kind.RERANKER: self.ranking,
        }

    def _check_reading(self) -> None:
        texts = [given for given in self.inputs.values() if given.dtype is Dtype.STRING and len(given.fields) == 1]
        if not self.kind.scores or len(self.inputs) != 1 or not texts:
            raise ValueError("reading belongs to a model that scores, with one input of one field, a string")
        if TOKENIZER not in self.files:
            raise ValueError(f"files must name {TOKENIZER}")
        if self.precisions:
            raise ValueError("a model that reads texts has no precisions")

    def _check_texts(self) -> None:
        part = {
            Kind.DECODER: "language",
            Kind.EMBEDDER: "embedding",
            Kind.ADAPTER: "adapter",
            Kind.RERANKER: "ranking",
        }[self.kind]
        if [kind for kind, described in self._of_texts.items() if described is not None] != [self.kind]:
            raise ValueError(f"kind {self.kind} needs {part}, and nothing of another kind")
        if self.inputs or self.labels or self.golden or self.outputs != Outputs() or self.thresholds != Thresholds():
            raise ValueError(
                f"kind {self.kind} has neither inputs, outputs, labels and thresholds nor golden: see {part}"
            )
        wanted = {Kind.DECODER: {TOKENIZER, TEMPLATE}, Kind.ADAPTER: set[str]()}.get(self.kind, {TOKENIZER})
        if missing := wanted - self.files.keys():
            raise ValueError(f"files must name {', '.join(sorted(missing))}")

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

    def _check_features(self) -> None:
        if (cells := sum(described.cells for described in self.features.values())) > CELLS:
            raise ValueError(f"features has {cells:,} values and shares; {CELLS:,} are allowed")
        filled = {field.name for _, field in self.fields()}
        for name, described in self.features.items():
            if not isinstance(parse(name), SessionFeature):
                continue
            if name not in filled:
                raise ValueError(f"features describes {name}, which fills no input")
            if isinstance(described, CategoryReference):
                raise ValueError(f"features describes {name} by categories; it is a number")

    def fields(self) -> Iterator[tuple[Input, InputField]]:
        """Every column of every input, in order; a field may fill several."""
        return ((given, field) for given in self.inputs.values() for field in given.fields)

    @property
    def identity(self) -> str:
        """As logs and errors name it: name@version."""
        return f"{self.name}@{self.version}"

    @property
    def uncalibrated(self) -> Self:
        """The same without its calibration: what the graph itself answers to."""
        return self if self.calibration is None else self.model_copy(update={"calibration": None})

    @property
    def offered(self) -> dict[str, Precision]:
        """All of its precisions; fp32 is always among them."""
        return {FP32: Precision(file=MODEL)} | self.precisions

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
        if len(raw) > LARGEST:
            raise too_large(where)
        try:
            return cls.model_validate_json(raw)
        except ValidationError as error:
            raise ManifestError(f"{where}: {mistakes(error)}") from None

    @classmethod
    def read(cls, path: Path, where: str) -> Self:
        """Reads a manifest file. Raises ManifestError where there is none, or none that can be read."""
        try:
            with path.open("rb") as file:
                raw = file.read(LARGEST + 1)
        except OSError as error:
            raise ManifestError(f"{where}: {path.name} can't be read: {error.strerror or error}") from error
        return cls.parse(raw, where)

    def write(self, folder: Path) -> Path:
        """Writes it into a model folder, as a person reads it. Returns the file."""
        path = folder / MANIFEST
        unsaid = None if self.features else {"features"}
        path.write_text(self.model_dump_json(indent=2, exclude_none=True, exclude=unsaid) + "\n", encoding="utf-8")
        return path


def too_large(where: str) -> ManifestError:
    """Of a file that nobody reads to its end."""
    return ManifestError(f"{where}: it has more than {LARGEST / 1e6:g} MB, which is all that it may have")


def mistakes(error: ValidationError) -> str:
    """What pydantic found wrong, each with its place."""
    return "; ".join(
        f"{'.'.join(map(str, e['loc'])) or 'as a whole'}: {e['msg'].removeprefix('Value error, ')}"
        for e in error.errors(include_url=False)
    )
