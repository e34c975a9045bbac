"""What people and models say to each other: messages come in, replies go out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from core.events import Identifier, Tag, Timestamp

Speaker = Literal["user", "system", "developer", "assistant", "tool"]
"""Who says something. `developer` is OpenAI's newer word for `system`."""

Finish = Literal["stop", "length", "cancelled", "timeout", "refused"]
"""Why a reply ends: the model ended it, it may not be longer, somebody or the clock stopped it, it was never made."""


Answerer = Literal["model", "passage"]
"""Who answers from what is known. model: the language model, which is shown passages. passage: the best passage itself,
word by word."""


Source = Literal["model", "cache", "passage", "rule"]
"""Who says a reply. cache: the model, when it was asked the same before. passage: a document, word by word. rule: the
worker itself, where it asks neither."""


Window = Literal["recent", "fixed", "semantic", "summary", "sinks"]
"""What a session's context keeps when it gets too long (docs/chat.md)."""


class Said(msgspec.Struct, gc=False):
    """One thing that was said."""

    role: Speaker
    text: str


class Generation(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """How a reply is to be made. What isn't given is what the model's folder says."""

    max_tokens: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """The worker's own limit holds as well (HOMUNCULUS_CHAT_MAX_TOKENS)."""
    temperature: Annotated[float, Meta(ge=0, le=10)] | None = None
    """0: always the likeliest token."""
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    min_p: Annotated[float, Meta(ge=0, lt=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    """By default one made of the message's own place, so that a replay draws the same."""
    stop: Annotated[list[Annotated[str, Meta(min_length=1, max_length=200)]], Meta(max_length=16)] | None = None
    """Texts that end the reply; they aren't part of it."""
    schema: dict[str, Any] | None = None
    """A JSON schema that the reply keeps to."""


class Message(msgspec.Struct, omit_defaults=True):
    """Something that somebody says in a session, or, with `cancel`, the wish that a reply be stopped."""

    id: Identifier
    session: Identifier
    ts: Timestamp
    text: str = ""
    role: Speaker = "user"
    user: str | None = None
    tenant: str | None = None
    attributes: dict[str, Any] | None = None
    """For rules."""
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    """Of messages that wait for the model, those with more of it go first."""
    ctx_ttl: Annotated[float, Meta(gt=0, le=3.2e9)] | None = None
    """Seconds of event time after which the session's context is forgotten, from this message on. Default: as before,
    else HOMUNCULUS_CTX_TTL."""
    window: Window | None = None
    """What the session's context keeps when it gets too long, from this message on. Default: as before, else
    HOMUNCULUS_CHAT_WINDOW."""
    window_tokens: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Tokens of the session's context, from this message on; the model's own limit holds as well. Default: as before,
    else HOMUNCULUS_CHAT_WINDOW_TOKENS."""
    cancel: Identifier | None = None
    """Id of the message of this session whose reply is to stop."""
    model: str | None = None
    """Default: the only language model that is deployed, or HOMUNCULUS_DEFAULT_CHAT_MODEL."""
    adapter: str | None = None
    """What changes the model for this message: the name of a deployed adapter of it. Default: nothing does."""
    options: Generation | None = None
    pinned: bool = False
    """Whether what is said here stays when the window moves on. System messages always do."""
    history: Annotated[list[Said], Meta(max_length=10_000)] | None = None
    """All that was said before, as the sender has it: the session's context becomes this. Default: what it holds."""
    seconds: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    """Until when it has to be answered, counted from when it is worked on; HOMUNCULUS_CHAT_SECONDS holds as well."""
    knowledge: bool | None = None
    """Whether it is answered from what is known, and from nothing else. Default: HOMUNCULUS_CHAT_KNOWLEDGE."""
    tags: Annotated[tuple[Tag, ...], Meta(max_length=50)] | None = None
    """Of documents that it may be answered from: those that have all of them. Default: HOMUNCULUS_CHAT_TAGS."""
    answer: Answerer | None = None
    """Who answers it then. Default: HOMUNCULUS_CHAT_ANSWER."""


class Usage(msgspec.Struct, gc=False, omit_defaults=True):
    """What a reply took."""

    prompt_tokens: int = 0
    """What the model was given: context, message, and the marks between them."""
    cached_tokens: int = 0
    """Those of them that it had computed before."""
    completion_tokens: int = 0
    wait_ms: float = 0
    """From when the message's turn came to the first of its tokens being computed."""
    first_token_ms: float = 0
    """From when its turn came to its first token."""
    total_ms: float = 0
    resumed_tokens: int = 0
    """Tokens of the reply that were recorded by a worker that then died, or lost the partition."""
    dropped_turns: int = 0
    """Turns of the session that the model wasn't told of, or of which it was told a summary alone."""
    window: Window = "recent"
    """By which the prompt was chosen;"""
    fallback: str | None = None
    """why that isn't the one that was asked for."""
    summary_tokens: int = 0
    """Of a summary that was made before the reply."""
    approximate_tokens: int = 0
    """Those of the cached ones that were computed when turns came before them that have gone since: `sinks` alone."""


class Citation(msgspec.Struct, gc=False, omit_defaults=True):
    """A passage that a reply was made from."""

    number: int
    """As the reply names it: [1]."""
    passage: str
    """DOCUMENT#HASH: stays as long as its text does."""
    document: str
    start: int
    end: int
    """Characters of the document's text: those that are quoted, or that the model was shown."""
    title: str | None = None
    url: str | None = None
    cited: bool = False
    """Whether the reply quotes it, or names its number."""


class Reply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A piece of an answer, or, with `final`, all of it."""

    id: str
    """The message's source and seq, e.g. messages/3/10/0."""
    message_id: str
    session: str
    ts: int
    """The message's own."""
    seq: int
    """Counts the records of one reply from 0."""
    text: str
    """A part's own text; the final one has it whole."""
    final: bool
    source: Source
    model: str | None = None
    version: str | None = None
    adapter: str | None = None
    """What changed the model, as NAME@VERSION."""
    finish: Finish | None = None
    """Of final ones."""
    why: str | None = None
    """Where there is no whole answer: what was wrong, or which limit ended it."""
    error: str | None = None
    """Class of what was wrong, for programs; where it is refused."""
    usage: Usage | None = None
    """Of final ones."""
    citations: list[Citation] = []
    """Of final ones: what the answer was made from."""
    stale: bool = False
    """Whether there were documents by then whose passages could not be found yet."""
    similar_to: str | None = None
    """Of source cache, where the question was only similar: where the message stands whose answer this is, e.g.
    messages/3/10."""
