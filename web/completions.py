"""OpenAI's wire format, as far as it is spoken here: what a request asks for, and what its answers look like.

Source: https://platform.openai.com/docs/api-reference/chat, and the types of the package openai 2.x.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from core.events import Tag
from core.messages import Citation, Finish, Generation, Reply, Said, Source, Usage
from web.errors import MalformedError

FINISHES: Final[dict[Finish, str]] = {"stop": "stop", "cancelled": "stop", "length": "length", "timeout": "length"}
"""Why a reply ends -> OpenAI's word for it. What is refused is an error instead."""
UNSPOKEN: Final = ("tools", "functions", "logprobs", "top_logprobs", "logit_bias", "audio", "modalities", "prediction")
"""What would change the answer and isn't done here: to leave it out in silence would be another answer."""


class Part(msgspec.Struct):
    """A piece of a message's content; only text is taken."""

    type: str
    text: str = ""


class Spoken(msgspec.Struct):
    """One message."""

    role: str
    content: str | list[Part] | None = None

    def said(self) -> Said:
        """As it is kept. Raises MalformedError for a role or a content that isn't taken."""
        if isinstance(self.content, list):
            if odd := [part.type for part in self.content if part.type != "text"]:
                raise MalformedError(f"content of type {odd[0][:40]!r} is not taken: send text")
            text = "".join(part.text for part in self.content)
        else:
            text = self.content or ""
        try:
            return msgspec.convert({"role": self.role, "text": text}, Said)
        except msgspec.ValidationError:
            raise MalformedError(
                f"role {self.role[:40]!r} is none: there is system, developer, user, assistant, tool"
            ) from None


class StreamOptions(msgspec.Struct):
    """What a stream has beside the text."""

    include_usage: bool = False


class Schema(msgspec.Struct):
    """A JSON schema and its name."""

    schema: dict[str, Any]
    name: str = ""


class Format(msgspec.Struct):
    """text, json_object, or json_schema."""

    type: str
    json_schema: Schema | None = None


class CompletionRequest(msgspec.Struct):
    """POST /v1/chat/completions. Other fields of OpenAI's are ignored where they change nothing, and refused else."""

    model: str
    messages: Annotated[list[Spoken], Meta(min_length=1, max_length=10_000)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    user: str | None = None
    n: int | None = None
    response_format: Format | None = None
    metadata: dict[str, str] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    logit_bias: dict[str, Any] | None = None
    audio: Any = None
    modalities: list[str] | None = None
    prediction: Any = None
    knowledge: bool | None = None
    """Ours: whether it is answered from what is known."""
    tags: Annotated[tuple[Tag, ...], Meta(max_length=50)] | None = None
    """Ours: of documents that it may be answered from."""

    def generation(self) -> Generation:
        """How the reply is to be made. Raises MalformedError for what isn't done here."""
        if odd := [name for name in UNSPOKEN if getattr(self, name) and getattr(self, name) != ["text"]]:
            raise MalformedError(f"{odd[0]} is not spoken here: leave it out")
        if self.n not in {None, 1}:
            raise MalformedError("n must be 1: a session goes on with one reply")
        if self.frequency_penalty or self.presence_penalty:
            raise MalformedError("there is no frequency_penalty and no presence_penalty here: leave them out")
        given = {
            "max_tokens": self.max_completion_tokens or self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p or None,
            "seed": None if self.seed is None else self.seed & (2**63 - 1),
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop or None,
            "schema": self._schema(),
        }
        try:
            return msgspec.convert({name: value for name, value in given.items() if value is not None}, Generation)
        except msgspec.ValidationError as error:
            raise MalformedError(str(error)) from None

    def _schema(self) -> dict[str, Any] | None:
        match self.response_format:
            case None | Format(type="text"):
                return None
            case Format(type="json_object"):
                return {"type": "object"}
            case Format(type="json_schema", json_schema=Schema(schema=schema)):
                return schema
        raise MalformedError("response_format is text, json_object, or json_schema with its json_schema")


class Spent(msgspec.Struct):
    """Tokens of an answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    """cached_tokens: those of the prompt that had been computed before."""

    @classmethod
    def of(cls, usage: Usage) -> Spent:
        """As a reply tells it."""
        total = usage.prompt_tokens + usage.completion_tokens
        return cls(usage.prompt_tokens, usage.completion_tokens, total, {"cached_tokens": usage.cached_tokens})


class Answered(msgspec.Struct):
    """The assistant's message."""

    role: str
    content: str
    refusal: str | None = None


class Choice(msgspec.Struct):
    """The one answer."""

    index: int
    message: Answered
    finish_reason: str
    logprobs: None = None


class Completion(msgspec.Struct):
    """The answer to POST /v1/chat/completions."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Spent
    citations: list[Citation]
    """Ours, as replies have them: passages that the answer was made from;"""
    source: Source
    """who has answered;"""
    stale: bool
    """and whether documents were still to come."""

    @classmethod
    def of(cls, reply: Reply, created: int, model: str) -> Completion:
        """A final reply, which isn't a refusal."""
        finish = FINISHES[reply.finish or "stop"]
        choice = Choice(0, Answered("assistant", reply.text), finish)
        usage = Spent.of(reply.usage or Usage())
        return cls(
            id_of(reply.message_id),
            "chat.completion",
            created,
            reply.model or model,
            [choice],
            usage,
            reply.citations,
            reply.source,
            reply.stale,
        )


class Delta(msgspec.Struct, omit_defaults=True):
    """What is new."""

    role: str | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct):
    """Of the one answer."""

    index: int
    delta: Delta
    finish_reason: str | None = None


class Chunk(msgspec.Struct, omit_defaults=True):
    """A message of a stream; after the last there is [DONE]."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Spent | UnsetType = UNSET
    citations: list[Citation] | UnsetType = UNSET
    """Ours, with the reason why it ends: as a Completion has them."""
    source: Source | UnsetType = UNSET
    stale: bool | UnsetType = UNSET


class ModelCard(msgspec.Struct):
    """A language model."""

    id: str
    object: str
    created: int
    owned_by: str


class ModelCards(msgspec.Struct):
    """GET /v1/models."""

    object: str
    data: list[ModelCard]


class Trouble(msgspec.Struct):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class Failure(msgspec.Struct):
    """OpenAI's form of a refusal."""

    error: Trouble


def id_of(message_id: str) -> str:
    """Of a completion."""
    return f"chatcmpl-{message_id}"
