"""What there is beside the talk to answer a message from: knowledge, facts of its session, an answer that was given for
the same reasons before, or to a similar question where a user allows for that."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

import msgspec

from agents.facts import Facts
from agents.grounding import ANSWERED, Ground, Grounding, Quote
from agents.intents import Intents
from agents.likeness import Likeness, Likenesses
from core.errors import KnowledgeAwayError
from core.messages import Citation, Generation, Message, Reply
from core.topics import MESSAGES
from engine.batch import Slice
from engine.engine import Engine
from engine.gate import facts_of_message
from models.decoder.turn import Sampling
from models.knowledge.boundary import LONGEST
from models.knowledge.knowledge import Asked
from models.knowledge.query import Query
from models.knowledge.reuse import Grounds, answer_key, scope_key
from tables.answers import Answer
from tables.contexts import Context
from tables.reusable import reusable
from tables.similar import Lesson

_encode: Final = msgspec.json.Encoder().encode
_LAYOUT: Final = re.compile(r"\s\s|[^\S ]")


@dataclass(slots=True)
class Inquiry:
    """One message's way through its sources."""

    found: Context | None = None
    """What the session holds."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """What rules are told of the message."""
    query: Query | None = None
    """What is asked of the knowledge; None: the message isn't answered from it."""
    asked: Asked | None = None
    """The message's vector, once somebody has needed it."""
    facts: str | None = None


class Sources:
    """Those of a worker's sessions."""

    def __init__(self, engine: Engine) -> None:
        self._settings = engine.settings
        self._gate = engine.gate
        self._knowledge = engine.knowledge
        self._grounding = Grounding(engine)
        self._intents = Intents(engine)
        self._facts = Facts(engine.settings)
        error = engine.settings.chat_similar_error
        self._likenesses = Likenesses(engine.knowledge, error) if error else None

    # -- before the gate ----------------------------------------------------------------------------------------------

    async def tell(self, inquiry: Inquiry, message: Message) -> None:
        """Finds out what rules, and the texts of facts, may look at: of the message, its session, and its intent where
        anybody asks for it and the sender hasn't told it."""
        found = inquiry.found
        began = next((turn.ts for turn in found.turns if turn.ts), None) if found else None
        turns = found.dropped + sum(not turn.folded for turn in found.turns) if found else 0
        told = facts_of_message(message, began, turns)
        wanted = self._facts.wants_intent or self._gate.looks_at(MESSAGES.name, "intent")
        if wanted and self._settings.intent_model is not None and "intent" not in told:
            inquiry.asked = await self._knowledge.asked(message.text)
            if (intent := await self._intents.of(inquiry.asked)) is not None:
                told["intent"] = intent
        inquiry.told = told

    # -- once it is known who answers ---------------------------------------------------------------------------------

    async def begin(self, inquiry: Inquiry, message: Message, s: Slice[Message], until: float) -> None:
        """What is asked of the knowledge. until: monotonic. Raises KnowledgeAwayError, TaskError."""
        inquiry.facts = self._facts.of(s, inquiry.told)
        inquiry.query = self._grounding.query(message)
        if inquiry.query is not None:
            await self._grounding.ready(s, until)

    def quotes(self, inquiry: Inquiry, message: Message) -> bool:
        """Whether a document's own words are the answer."""
        return inquiry.query is not None and (message.answer or self._settings.chat_answer) == "passage"

    async def ground(self, inquiry: Inquiry, message: Message) -> Ground | None:
        """What is found; None where nothing is asked. Raises KnowledgeAwayError."""
        if inquiry.query is None:
            return None
        return await self._grounding.find(message, inquiry.query, inquiry.asked)

    async def quote(self, inquiry: Inquiry, ground: Ground) -> Quote:
        """As Grounding.quote."""
        return await self._grounding.quote(ground, inquiry.asked)

    async def there(self, ground: Ground | None, citations: Sequence[Citation]) -> list[Citation]:
        """As Grounding.there."""
        return [] if ground is None else await self._grounding.there(ground.query.tenant, citations)

    # -- answers that may be given again ------------------------------------------------------------------------------

    def key(
        self, inquiry: Inquiry, message: Message, sampling: Sampling, model: str, ground: Ground | None = None
    ) -> str | None:
        """All that the answer depends on, as one word; None where it is never given again. ground: what was found; by
        default as the knowledge is now. model: identity of the version."""
        grounds = self._grounds(inquiry, message, sampling, model, ground)
        hashed = None if grounds is None else answer_key(message.text, grounds)
        return None if hashed is None else hashed.hex()

    def _grounds(
        self, inquiry: Inquiry, message: Message, sampling: Sampling, model: str, ground: Ground | None
    ) -> Grounds | None:
        options = message.options or Generation()
        drawn = sampling.temperature > 0 and options.seed is None
        if not self._settings.chat_reuse or (drawn and inquiry.query is None):
            return None
        version: tuple[int, ...] = ()
        embedder, reranker = self._grounding.embedder, ""
        if ground is not None:
            version, embedder, reranker = ground.version, ground.embedder, ground.reranker
        elif inquiry.query is not None:
            version, reranker = self._grounding.version, self._grounding.reranker
        context = blake2b(_encode(self._context(inquiry, message, sampling)), digest_size=32).digest()
        return Grounds(message.tenant, context, version, model, embedder, reranker)

    def _context(self, inquiry: Inquiry, message: Message, sampling: Sampling) -> list[Any]:
        """What else the model is told, and how it is asked."""
        found, seed = inquiry.found, (message.options or Generation()).seed
        held = None
        if found is not None and (message.history is None or found.dropped):
            texts = [[(one.role, one.text) for one in turn.said] for turn in found.turns]
            held = [texts, [turn.pinned for turn in found.turns], found.dropped, found.sinks.hex()]
        window = message.window or (found.window if found else None)
        window_tokens = message.window_tokens or (found.window_tokens if found else None)
        query = inquiry.query
        return [
            # Of a question's words the gaps between them say nothing; of a program's, or a table's, they do.
            message.text if _LAYOUT.search(message.text.strip()) else None,
            held,
            message.history,
            message.role,
            message.pinned,
            window,
            window_tokens,
            inquiry.facts,
            None if query is None else [sorted(query.tags), query.count],
            msgspec.structs.replace(sampling, seed=seed),
        ]

    async def again(self, key: str | None, tenant: str | None) -> tuple[Answer, Reply] | None:
        """An answer that was given for the same reasons, if all that it cites is still there."""
        found = None if key is None else reusable.find(key)
        if found is None:
            return None
        return found if await self.stands(tenant, found[1].citations) else None

    # -- answers to similar questions ---------------------------------------------------------------------------------

    async def likeness(
        self, inquiry: Inquiry, message: Message, sampling: Sampling, model: str, source: str
    ) -> Likeness | None:
        """Whether a message gets the answer of a similar one; None where nobody allows for it, or it may have no
        other's. source: where it stands."""
        scope = self._scope(inquiry, message, sampling, model, None)
        if self._likenesses is None or scope is None:
            return None
        inquiry.asked = inquiry.asked or await self._knowledge.asked(message.text)
        vector, embedder = inquiry.asked
        if vector is None or embedder != self._grounding.embedder:
            return None
        found = self._likenesses.of(scope, vector, message.ts, source)
        if found.near is not None and not await self.stands(message.tenant, found.near.reply.citations):
            return Likeness(scope, vector)
        return found

    def given(self) -> None:
        """As Likenesses.given."""
        assert self._likenesses is not None
        self._likenesses.given()

    def lesson(
        self,
        likeness: Likeness | None,
        inquiry: Inquiry,
        message: Message,
        sampling: Sampling,
        model: str,
        ground: Ground | None,
        text: str,
        citations: Sequence[Citation] = (),
        *,
        keep: bool = True,
    ) -> Lesson | None:
        """What a message's own answer teaches. keep: whether that may be given again."""
        scope = self._scope(inquiry, message, sampling, model, ground)
        if self._likenesses is None or likeness is None or scope is None:
            return None
        return self._likenesses.lesson(likeness, scope, text, citations, keep=keep)

    def _scope(
        self, inquiry: Inquiry, message: Message, sampling: Sampling, model: str, ground: Ground | None
    ) -> str | None:
        """All that the answer depends on but the question; None where a similar one never has the same."""
        text = message.text.strip()
        if self._likenesses is None or message.role not in ANSWERED or len(text) > LONGEST or _LAYOUT.search(text):
            return None
        grounds = self._grounds(inquiry, message, sampling, model, ground)
        if grounds is None or answer_key(message.text, grounds) is None:
            return None
        return scope_key(grounds).hex()

    # -- both ---------------------------------------------------------------------------------------------------------

    async def stands(self, tenant: str | None, citations: Sequence[Citation]) -> bool:
        """Whether all that an answer cites is still there."""
        try:
            return len(await self._grounding.there(tenant, citations)) == len(citations)
        except KnowledgeAwayError:
            return False
