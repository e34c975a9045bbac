"""The records that cross topics. msgspec structs where every event passes, pydantic where people write."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Feature = float | str | bool | None
"""What a raw feature may be; JSON integers become floats."""


Identifier = Annotated[str, Meta(min_length=1, max_length=1000)]
Timestamp = Annotated[int, Meta(ge=0, le=253_402_300_799_999)]
"""ms since epoch, to the end of year 9999."""


class Source(NamedTuple):
    """Where a record stands: what its outputs' ids are made of."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


class Observation(msgspec.Struct, gc=False):
    """Something that happened in a session, with its raw features."""

    id: Identifier
    session: Identifier
    ts: Timestamp
    features: dict[str, Feature]
    model: str | None = None
    attributes: dict[str, Any] | None = None
    tenant: str | None = None


Tag = Annotated[str, Meta(min_length=1, max_length=200)]


class Document(msgspec.Struct, gc=False, omit_defaults=True):
    """Something to know: a record of `documents`, keyed by its id. A null value deletes it."""

    id: Identifier
    text: str
    title: Annotated[str, Meta(max_length=1000)] | None = None
    url: Annotated[str, Meta(max_length=2000)] | None = None
    tags: Annotated[tuple[Tag, ...], Meta(max_length=50)] = ()
    tenant: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    """Whose it is: nobody else finds it. None: it belongs to questions without a tenant."""
    format: Literal["text", "markdown", "html"] | None = None
    """Of the text. None: as it looks."""


Role = Literal["active", "canary", "shadow"]
"""As what a version answers: shadows for comparison alone."""


class Prediction(msgspec.Struct, gc=False, omit_defaults=True):
    """What a model said of one observation."""

    id: str
    """The source, e.g. observations/3/1042; shadows add /shadow/NAME@VERSION."""
    event_id: str
    session: str
    ts: int
    model: str
    version: str
    label: str
    scores: dict[str, float]
    """label -> probability; {"value": v} of a regressor."""
    confidence: float | None
    """None for regressors that declare no interval."""
    low_confidence: bool
    role: Role
    decision: bool | None = None
    """Whether the decision label's score passed the manifest's threshold; absent where it has none."""
    out_of_order: bool = False
    """The event was older than its session's newest: features that depend on order left it out."""


class Feedback(msgspec.Struct, gc=False):
    """What became of an event that was answered: a label, a correction of one, or a signal such as a click."""

    id: Annotated[str, Meta(min_length=1, max_length=200)]
    session: Identifier
    ts: Timestamp
    """When it was known, which the horizon of the manifest counts to."""
    event_id: Identifier
    """Of the observation, in the same session."""
    type: Annotated[str, Meta(min_length=1, max_length=50)]
    """label, correction, or the name of a signal: click, dwell, ..."""
    label: Annotated[str, Meta(max_length=200)] | None = None
    score: float | None = None
    """Of a regressor's label: the true value; of a signal: how strong it is."""
    model: Annotated[str, Meta(max_length=100)] | None = None
    """Whose answer it is about; without it, every model's that has answered the event."""


class Alert(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a person should hear of."""

    id: str
    """SOURCE/KIND/SUBJECT/STATE."""
    kind: str
    severity: Literal["info", "warning", "critical"]
    state: Literal["opened", "worsened", "resolved"]
    subject: str
    ts: int
    title: str
    evidence: dict[str, Any] = {}
    trace_id: str | None = None


Version = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
ModelName = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
PRECISION_PATTERN = r"^[a-z][a-z0-9_-]{0,19}$"
Precision = Annotated[str, Field(pattern=PRECISION_PATTERN)]
"""Which file of a version computes: fp32, or another that its manifest names."""


RESPONSES: Final = ("freeze", "fallback", "retrain")
"""freeze: no promotions; fallback: the fallback version takes over; retrain: a record on `retrain` asks for it."""


def _responses(text: str) -> str:
    """The one spelling. Raises ValueError for what is no response."""
    wanted = [word.strip() for word in text.split(",") if word.strip()]
    if wanted == ["none"]:
        return ""
    if unknown := [word for word in wanted if word not in RESPONSES]:
        raise ValueError(
            f"response {unknown[0]!r} is none: there is {', '.join(RESPONSES)}, several with commas; or none"
        )
    return ", ".join(word for word in RESPONSES if word in wanted)


_RESPONSE: Final = "|".join(RESPONSES)
Response = Annotated[
    str,
    # For its schema: the words of an error are those of _responses.
    Field(max_length=200, json_schema_extra={"pattern": f"^(none|(({_RESPONSE})(, ?({_RESPONSE}))*)?)$"}),
    AfterValidator(_responses),
]


class Action(BaseModel):
    """A request on `control`: {"active": "2"}, or the long form. Keyed by the model's name.

    Or {"action": "erase", "session": "..."}, keyed by that session: `faust -A app tables erase` sends it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Literal[
        "deploy",
        "promote",
        "canary",
        "shadow",
        "rollback",
        "freeze",
        "unfreeze",
        "unload",
        "republish",
        "erase",
        "respond",
        "reset",
        "acknowledge",
        "resolve",
        "backfill",
    ] = "deploy"
    """republish: what is deployed is written to `deployments` once more, as it is. respond: does what the deployment
    declares for a drift. reset: a version's detectors begin anew. acknowledge, resolve: of a condition of a version.
    backfill: session features that began later than the sessions are filled from the log."""
    id: str | None = Field(default=None, max_length=200)
    active: Version | None = None
    """Short form of deploying that version."""
    version: Version | None = None
    share: float | None = Field(default=None, ge=0, le=1)
    limits: dict[str, float] | None = None
    """Of a canary: what promotes it or rolls it back by itself (models/limits.py)."""
    precision: Precision | None = None
    """Of the version that is asked for: which of its files computes. Default: as it is deployed, else fp32."""
    max_error: float | None = Field(default=None, ge=0)
    """In place of a precision: the quickest whose scores differ by so much from fp32's at most."""
    max_latency: float | None = Field(default=None, gt=0)
    """In place of a precision: the most exact whose run of 64 rows took so many seconds at most, where it was made."""
    fallback: Version | None = None
    response: Response | None = None
    """What is done by itself when the active version drifts: `freeze, fallback, retrain`, or `none`."""
    preset: Literal["default", "classic"] | None = None
    """What counts as a drift: classic takes the plain rule, which is quicker and errs more often."""
    low_alerts: float | None = Field(default=None, ge=0, le=6000)
    """Answers with low confidence that are told singly, a minute at most; 0: none."""
    alert: str | None = Field(default=None, max_length=2000)
    """Of respond, acknowledge and resolve: the id of the alert that it is about."""
    began: int | None = Field(default=None, ge=0)
    """Of respond: event time, ms since epoch, from which on the stream is another one."""
    until: int | None = Field(default=None, ge=0)
    """Of respond: event time of the answer that decided."""
    since: int | None = Field(default=None, ge=0, le=253_402_300_799_999)
    """Of backfill: ms since epoch; observations that were written before are left out."""
    based_on: int | None = Field(default=None, ge=0)
    reason: str | None = Field(default=None, max_length=2000)
    author: str | None = Field(default=None, max_length=200)
    figures: dict[str, float] | None = None
    """Of the canary, where its limits ask for its promotion or rollback: what they go by."""
    session: str | None = Field(default=None, min_length=1, max_length=1000)
    """Whose state goes: with `erase` alone."""

    @model_validator(mode="after")
    def _erases_a_session(self) -> Action:
        if (self.action == "erase") != (self.session is not None):
            raise ValueError("erase, and nothing else, names a session")
        return self

    @model_validator(mode="after")
    def _one_way_to_a_precision(self) -> Action:
        constrained = self.max_error is not None or self.max_latency is not None
        if self.precision is not None and constrained:
            raise ValueError("a precision is named, or chosen by max_error and max_latency: not both")
        return self

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        if isinstance(data, dict) and "active" in data and "version" not in data:
            return {**data, "version": data["active"]}
        return data


class Canary(BaseModel):
    """A version that answers for a share of the sessions."""

    model_config = ConfigDict(frozen=True)

    version: Version
    share: float = Field(gt=0, le=1)


class Backfill(BaseModel):
    """Session features that each partition's owner fills from the log."""

    model_config = ConfigDict(frozen=True)

    revision: int = Field(ge=1)
    """Of the model, that asked for it."""
    features: tuple[str, ...]
    since: int | None = None
    """ms since epoch: observations that were written before are left out. Absent: from the oldest that there is."""


class Deployment(BaseModel):
    """The accepted state of one model, as `deployments` holds it."""

    model_config = ConfigDict(frozen=True)

    model: ModelName
    revision: int = Field(ge=1)
    active: Version | None = None
    """Absent once the model is unloaded."""
    previous: Version | None = None
    """Active before this one: where a rollback leads that names none."""
    canary: Canary | None = None
    shadow: tuple[Version, ...] = ()
    precision: dict[Version, Precision] = {}
    """Version -> which of its files computes, of those that are deployed or were before; fp32 where it isn't named."""
    fallback: Version | None = None
    frozen: bool = False
    limits: dict[str, float] = {}
    response: Response | None = None
    preset: Literal["default", "classic"] = "default"
    low_alerts: float = 0
    backfill: Backfill | None = None
    """The newest that was asked for."""
    since: int
    """ms since epoch: the time of the request that led here."""
    author: str | None = None
    reason: str | None = None

    @property
    def versions(self) -> tuple[Version, ...]:
        """Those that must be loaded, the active one first."""
        named = (self.active, self.canary.version if self.canary else None, *self.shadow)
        return tuple(version for version in named if version is not None)

    @property
    def loads(self) -> tuple[tuple[Version, Precision], ...]:
        """The same, each with its precision."""
        return tuple((version, self.precision_of(version)) for version in self.versions)

    def precision_of(self, version: Version) -> Precision:
        """Which of a version's files computes."""
        return self.precision.get(version, "fp32")


class Retrain(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A request for training, on `retrain`."""

    id: str
    """SOURCE/retrain/MODEL, of the request that led to it."""
    model: str
    version: str
    """The version that drifted."""
    began: int | None
    """Event time, ms since epoch, from which on the stream is another one."""
    until: int
    """Event time of the answer that decided."""
    sources: list[str]
    """Topics with what to learn from."""
    alert: str | None = None
    """Id of the alert that told of it."""
    reason: str | None = None
    ts: int


class ModelStatus(BaseModel):
    """What one worker has live of one model: a record of `model-status`, keyed by the worker."""

    model_config = ConfigDict(frozen=True)

    worker: str
    models: dict[str, dict[str, Any]]
    """model -> {version, role, since, memory_bytes?, error?}"""
    ts: int
    device: str | None = None
    """What models run on there: cpu, or cuda:0."""
    fallback: str | None = None
    """Why they run on the CPU though a GPU was to be taken. Absent where none had to be replaced."""
