"""Every setting, read once from the environment (HOMUNCULUS_*) and .env, frozen, and handed down."""

from __future__ import annotations

import difflib
import os
from datetime import timedelta
from enum import StrEnum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import unquote

from pydantic import (
    AfterValidator,
    AnyHttpUrl,
    BeforeValidator,
    ByteSize,
    Field,
    IPvAnyAddress,
    NonNegativeInt,
    PositiveInt,
    SecretStr,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from core.errors import SettingsError
from core.facts import names_in
from core.messages import Window

EMBEDDED = "embedded"
RELEVANCE: Final = 0.6
"""docs/knowledge.md has what led to it."""
SECRETS: Final = (
    "broker_password", "broker_key_password", "web_token", "web_read_token", "alert_secret", "qdrant_api_key",
)  # fmt: skip
"""Settings that may be given as a file: HOMUNCULUS_NAME_FILE holds the path, the file nothing but the secret."""

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)]
"""What Kafka accepts in topic names, group ids and transactional ids."""


def _seconds(value: object) -> object:
    """A number in the environment is seconds; pydantic alone would want a unit."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _names(value: object) -> object:
    """Names in the environment are separated by commas."""
    return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value


def _with_names(text: str | None) -> str | None:
    """Checks names in braces where pydantic adds the variable to a ValueError."""
    names_in(text or "")
    return text


class Guarantee(StrEnum):
    """What a crash may do to outputs."""

    EXACTLY_ONCE = "exactly_once"
    """Outputs, state and positions commit together; needs a broker with transactions."""
    AT_LEAST_ONCE = "at_least_once"
    """Outputs leave at once; after a crash some are repeated, with the same id."""


class Settings(BaseSettings):
    """The worker's settings. Each field tells its unit and its price."""

    model_config = SettingsConfigDict(
        env_prefix="HOMUNCULUS_",
        env_file=".env",
        frozen=True,
        extra="ignore",
        env_ignore_empty=True,
        hide_input_in_errors=True,
    )

    broker: str = EMBEDDED
    """`embedded`, or kafka://host:port,... (the embedded one keeps everything in memory). Secured: kafka+ssl://,
    kafka+sasl_ssl://user@, kafka+sasl_plaintext://user@; docs/security.md has the rest. A password in it is moved to
    broker_password."""
    broker_password: SecretStr | None = None
    """Of the user that the broker's URL names."""
    broker_password_file: Path | None = None
    broker_key_password: SecretStr | None = None
    """Of the private key in ssl_keyfile, where it is encrypted."""
    broker_key_password_file: Path | None = None
    app_id: Name = "homunculus"
    """Consumer group, prefix of transactional ids and of changelog topics."""
    worker_id: Name | None = None
    """Static membership: a restart within the session timeout moves no partition. Unique in the group."""
    partitions: PositiveInt = 8
    """Partitions of every input topic; the unit of scale. Can't change while the topics exist."""
    replication: PositiveInt = 1
    """Replicas of topics that we create."""
    data_dir: Path = Path("data")
    """RocksDB checkpoints of the changelogs, and copies of the models of a remote store; losing it costs a replay and a
    download, not data."""
    model_store: str = "store"
    """Folder or fsspec URL (s3://, gs://, https://, ...) that holds NAME/VERSION/. Empty is fine: the first model comes
    from control."""
    default_model: str | None = None
    """Model of observations that name none. Default: the only one that is deployed."""
    embedder: str | None = None
    """Model that makes vectors of documents and questions. Default: the only embedder that is deployed."""
    reranker_model: str | None = None
    """Model that reads a question and each of the ten best passages together, and orders them anew: a question waits
    for it, a second at most. Default: none, and the fused order stands (docs/knowledge.md has what one gains)."""
    qdrant_url: AnyHttpUrl | None = None
    """Qdrant server that holds the passages' vectors, like http://qdrant:6333: no worker keeps them in memory then, and
    a question costs a round trip. Its collection is called APP_ID. Default: each worker holds them itself."""
    qdrant_grpc_port: Annotated[int, Field(ge=0, le=65535)] = 6334
    """Port at which that server's host speaks gRPC, over TLS where the URL is https: all is asked there, for a third
    less CPU than by HTTP, and the URL's own port and path are not used. 0: HTTP alone, at the URL."""
    qdrant_api_key: SecretStr | None = None
    qdrant_api_key_file: Path | None = None
    device: Annotated[str, StringConstraints(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """auto takes a GPU when there is one; cuda fails without one."""
    gpu_memory: Annotated[ByteSize | None, Field(gt=0)] = None
    """Bytes of the GPU that model versions may hold in all, like 6GB; the CUDA context, some hundred MB, is beside it.
    A version that doesn't fit beside the one it follows takes its place: events wait meanwhile. Default: no bound."""
    without_model: Literal["wait", "dead-letter"] = "wait"
    """Events that arrive while no model is live: held back (bounded), or sent to dead-letters."""
    web_bind: IPvAnyAddress = IPv4Address("127.0.0.1")
    """Address of the web views. Any but loopback needs web_token, or the worker refuses to start."""
    web_port: Annotated[int, Field(ge=1, le=65535)] = 6066
    web_cert: Path | None = None
    """Certificate (and its chain) in PEM form: the web views are https then, and workers ask each other so."""
    web_key: Path | None = None
    """Its private key, where it isn't in the same file; not encrypted."""
    web_ca: Path | None = None
    """Authority that signed the certificates of the other workers. Default: those that the machine trusts."""
    web_token: SecretStr | None = None
    """Bearer token for reading and writing."""
    web_token_file: Path | None = None
    web_read_token: SecretStr | None = None
    """Bearer token for reading alone."""
    web_read_token_file: Path | None = None
    alert_webhook: AnyHttpUrl | None = None
    """Where every alert is posted to, as Standard Webhooks says. Default: nowhere."""
    alert_secret: SecretStr | None = None
    """What these posts are signed with: whsec_BASE64, or any text. Default: they aren't."""
    alert_secret_file: Path | None = None
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    """at_least_once is chosen by itself, and said, where the broker has no transactions."""
    commit_interval: Annotated[float, Field(gt=0, le=60)] = 0.05
    """Seconds between commits: what a read_committed reader waits at most, and what a crash makes us redo."""
    standbys: NonNegativeInt = 0
    """Copies of each partition's tables on other workers: a takeover replays only what they haven't read yet."""
    session_ttl: Annotated[timedelta | None, BeforeValidator(_seconds)] = None
    """Event time after which a silent session is forgotten: seconds, or ISO 8601 like P30D. Default: never. The clock
    is the partition's watermark, so an event that is late by the TTL and more may or may not find it there."""
    allowed_lateness: Annotated[timedelta, BeforeValidator(_seconds), Field(ge=timedelta(0))] = timedelta(seconds=10)
    """How far in event time an event may be behind the newest of its partition: seconds, or ISO 8601 like PT1M. The
    newest less this is the partition's watermark. Windows, patterns and event-time timers wait for it, and agents that
    ask for event time never see an event older than it: that goes to `late`."""
    hot_sessions: PositiveInt = 200_000
    """Sessions kept in memory on a worker, over all its partitions; the others wait in RocksDB."""
    default_chat_model: str | None = None
    """Language model of messages that name none. Default: the only one that is deployed."""
    chat_window: Window = "recent"
    """What a session's context keeps when it gets too long. recent: all but the oldest turns, which go some at a time,
    so that most turns compute their own tokens only. fixed: the newest turns that fit into chat_window_tokens.
    semantic: the newest, and earlier ones that are about the same, by the embedder; each turn computes most of the
    window. summary: the model sums up the oldest, which takes a reply's time now and then. sinks: all but the oldest,
    and nothing is computed anew: replies are approximate. Messages and rules may say another for their session."""
    chat_window_tokens: PositiveInt | None = None
    """Tokens of a context at most, with the message that is to be answered. Default: what the model has room for;
    1,024 with chat_window fixed."""
    chat_max_tokens: PositiveInt = 512
    """Tokens of a reply at most, as far as the window has room: at most half of it is kept free for them."""
    chat_max_text: PositiveInt = 50_000
    """Characters of a message at most."""
    chat_seconds: Annotated[float, Field(gt=0, le=86_400)] = 120.0
    """What a reply may take, from when its turn has come; then it ends as it is."""
    chat_waiting: PositiveInt = 100
    """Messages of one session that may wait for their turn; what comes beyond is refused in words."""
    chat_knowledge: bool = False
    """Whether messages that don't say so themselves are answered from what is known (docs/knowledge.md), and from
    nothing else."""
    chat_tags: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)] = ()
    """Of documents that such messages may be answered from, separated by commas: those that have all of them."""
    chat_answer: Literal["model", "passage"] = "model"
    """Who answers them. model: the language model, which is shown passages. passage: the best passage itself, word by
    word: for models that are too small to be trusted, and where there is none."""
    chat_relevance: Annotated[float, Field(ge=-1, le=1.5)] = RELEVANCE
    """How near the best passage has to be to a question to be an answer: its cosine, and half the share of the
    question's words that it has (models/knowledge/relevance.py). Chosen for all-MiniLM-L6-v2; another embedder has
    another scale (scripts/bench grounding)."""
    chat_facts: Annotated[str | None, Field(max_length=2000), AfterValidator(_with_names)] = None
    """What a model is told beside each question, with names in braces that are filled in: "Purchases so far:
    {features.count}; {prediction.label}". Names begin with features, prediction, session or intent (docs/chat.md)."""
    chat_reuse: bool = True
    """Whether the same question in the same context, with the same knowledge, gets the same answer again without the
    model. Replies that are drawn at random (temperature above 0 and no seed) and not from knowledge never do."""
    chat_similar_error: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the questions similar to an answered one that may get its answer although their own would have been
    another (docs/chat.md). 0: a similar question never gets another one's answer. Needs chat_reuse and an embedder;
    a question costs its vector (9 ms of CPU with all-MiniLM-L6-v2)."""
    intent_model: str | None = None
    """Classifier that takes the embedder's vector of a message: what it says is `intent` in rules. Default: there is
    none. Observations are never scored by it unless they name it."""
    chat_slots: PositiveInt = 8
    """Sessions whose attention state is in memory at once, which is how many are answered at once; the others' waits on
    disk, or is computed anew."""
    chat_context: PositiveInt = 2048
    """Tokens of a context and its reply, at most; models may take less. Memory: slots times this times what a token
    takes (46 KB in SmolLM2-135M), as far as it is used."""
    chat_threads: PositiveInt | None = None
    """Of a language model. Default: one less than there are processors, so that the event loop has its own."""
    chat_disk: ByteSize = ByteSize(2_000_000_000)
    """Bytes in data_dir for the attention state of idle sessions (23 KB a token in SmolLM2-135M); 0: it is computed
    anew when they come back."""
    chat_exact: bool = False
    """Sessions' attention state is kept in fp32: twice the bytes of fp16, and replies that don't depend on when a
    session had to make room for others."""
    ctx_ttl: Annotated[timedelta | None, BeforeValidator(_seconds)] = timedelta(days=1)
    """Event time after which a silent session's context is forgotten: seconds, or ISO 8601; messages may say their own.
    It is counted like session_ttl."""
    topic_prefix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]*$", max_length=100)] = ""
    """Put before the name of every topic."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    """Of what we produce. All but gzip need the package cramjam."""
    max_record: Annotated[ByteSize, Field(ge=10_000)] = ByteSize(1_000_000)
    """Largest record that we write; larger outputs become dead letters."""
    session_timeout: Annotated[float, Field(ge=1, le=1800)] = 10.0
    """Seconds of silence after which the group takes a worker for dead. Kafka itself takes 6 and more by default."""
    otlp_endpoint: AnyHttpUrl | None = None
    """Where traces go: a collector's OTLP over HTTP, like http://collector:4318, or over gRPC, like
    http://collector:4317, where OTEL_EXPORTER_OTLP_PROTOCOL=grpc. Default: there are none. The rest is told by
    OpenTelemetry's own variables, OTEL_TRACES_SAMPLER and others (docs/observability.md)."""
    trace_attributes: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)] = ()
    """Names of an event's `attributes`, or fields, that spans may show, separated by commas: `tenant,order.channel`.
    What isn't named stays out of traces."""
    profile: Path | None = None
    """File for seconds of CPU by part of the worker, sampled. Default: nothing is sampled."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"

    @classmethod
    def read(cls) -> Self:
        """The settings of this process. Raises SettingsError naming each variable that is wrong."""
        names = {f"HOMUNCULUS_{name.upper()}" for name in cls.model_fields}
        for variable in os.environ:
            if variable.startswith("HOMUNCULUS_") and variable not in names:
                given = variable.removeprefix("HOMUNCULUS_").lower()
                close = difflib.get_close_matches(given, list(cls.model_fields), n=1, cutoff=0.5)
                hint = f"; did you mean HOMUNCULUS_{close[0].upper()}?" if close else ""
                raise SettingsError(f"{variable} is not a setting{hint}")
        try:
            return cls()
        except ValidationError as error:
            raise SettingsError(
                "; ".join(_told(one["loc"], one["msg"], one["input"]) for one in error.errors())
            ) from None

    @model_validator(mode="before")
    @classmethod
    def _secrets(cls, given: Any) -> Any:
        """Secrets come out of files and out of the broker's URL, so that nothing that shows a setting shows one."""
        values = dict(given)
        for name in SECRETS:
            if values.get(f"{name}_file") is not None:
                _give(values, name, _read(name, values[f"{name}_file"]), f"HOMUNCULUS_{name.upper()}_FILE")
        url, question, query = str(values.get("broker", EMBEDDED)).partition("?")
        login, at, hosts = url.rpartition("@")
        user, colon, password = _after_scheme(login).partition(":")
        if at and colon:
            scheme = login.removesuffix(f"{user}:{password}")
            values["broker"] = f"{scheme}{user}@{hosts}{question}{query}"
            _give(values, "broker_password", unquote(password), "HOMUNCULUS_BROKER")
        return values

    @property
    def embedded(self) -> bool:
        """Whether the worker runs its own broker."""
        return self.broker == EMBEDDED


def _after_scheme(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return rest or scheme


def _give(values: dict[str, Any], name: str, secret: str, source: str) -> None:
    if values.get(name):
        raise SettingsError(f"HOMUNCULUS_{name.upper()} is set, and {source} holds one too: keep one of them")
    values[name] = secret


def _read(name: str, path: object) -> str:
    try:
        secret = Path(str(path)).read_text("utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SettingsError(f"HOMUNCULUS_{name.upper()}_FILE is {path}, which can't be read: {why}") from None
    if not secret:
        raise SettingsError(f"HOMUNCULUS_{name.upper()}_FILE is {path}, which is empty")
    return secret


def _told(where: tuple[int | str, ...], what: str, got: object) -> str:
    name = "_".join(map(str, where))
    shown = "" if name in SECRETS or name == "broker" else f" (got {got!r})"
    return f"HOMUNCULUS_{name.upper()}: {what}{shown}"
