"""What a model is asked: the session's context, moved on to the message that is to be answered."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import msgspec

from core.errors import ContextTooLongError, TemplateError
from core.messages import Citation, Message, Said, Speaker, Window
from core.settings import Settings
from models.decoder.decoder import Decoder
from models.decoder.room import divided
from models.decoder.wording import Tokens, Wording, Written
from models.knowledge.query import Found
from models.knowledge.quoting import INSTRUCTIONS, Quoted, put, quoted
from models.language import TEMPLATE
from models.windows.fixed import FIXED
from models.windows.sinks import SINKS
from models.windows.turn import tokens
from tables.contexts import Context, Turn, Utterance, packed, unpacked

PINNED: tuple[Speaker, ...] = ("system", "developer")


class Material(NamedTuple):
    """What the model is told beside what was said. It is in the prompt of one message alone: the session's context has
    what was said, so former turns' passages neither fill the window nor outlive their documents."""

    passages: Sequence[Found] | None = None
    """What answers the message, the best first; None: it isn't answered from what is known."""
    facts: str | None = None


ALONE: Final = Material()
NOTHING: Final = Quoted("", [], 0)


class Draft(NamedTuple):
    """What a prompt is made of, before the session's window has chosen."""

    message: Message
    asked: Utterance
    """The message in tokens."""
    context: Context
    """As the message leaves it, with the turns before it and without its own."""
    room: int
    """Tokens that those turns may have in the prompt."""
    window: Window
    """What is to choose."""
    material: Material = ALONE
    quoted: Quoted = NOTHING
    """As much of its passages as there is room for."""


class Chosen(NamedTuple):
    """What a window has chosen."""

    turns: list[Turn]
    """That the model is told of."""
    held: list[Turn]
    """That the session holds from now on."""
    window: Window
    """Which it was;"""
    fallback: str | None = None
    """why it wasn't the one that was asked for."""


class Prompt(NamedTuple):
    """What is asked, and what the context is once it is answered."""

    tokens: Tokens
    context: Context
    """With the new turn, whose reply is still to come."""
    untold: int
    """Turns of the session that aren't in it, or in a summary alone."""
    citations: Sequence[Citation] = ()
    """The passages that are in it."""

    def answered(self, reply: Written | None) -> Context:
        """The context with the reply; without one nothing was said."""
        if reply is None:
            return self.context
        turn = self.context.turns[-1]
        said = [*turn.said, Utterance("assistant", reply.text, packed(reply.tokens))]
        return msgspec.structs.replace(
            self.context, turns=[*self.context.turns[:-1], msgspec.structs.replace(turn, said=said)]
        )


class Prompts:
    """Makes them for one decoder version."""

    def __init__(self, decoder: Decoder, settings: Settings) -> None:
        self._settings = settings
        self.decoder = decoder
        self.wording = Wording(decoder, decoder.end_tokens)
        self.tokenizer = f"{decoder.tokenizer_sha256}/{decoder.manifest.files[TEMPLATE]}"
        """What makes the tokens: tokenizer and template."""

    def draft(self, message: Message, found: Context | None, reserve: int, material: Material = ALONE) -> Draft:
        """found: what the session holds. reserve: tokens of the window that the reply may want.

        Raises ContextTooLongError where the message, or what is pinned, leaves no room for the rest, and TemplateError.
        """
        settings = self._settings
        before, dropped = self._before(message, found)
        asked = self.utterance(message.role, message.text, first=not before)
        window = message.window or (found.window if found else None)
        wanted = message.window_tokens or (found.window_tokens if found else None)
        context = Context(
            ts=max(message.ts, found.ts if found is not None else 0),
            ttl_ms=_ttl_ms(message, found, settings),
            tokenizer=self.tokenizer,
            turns=before,
            dropped=dropped,
            window=window,
            window_tokens=wanted,
            sinks=found.sinks if found and dropped and found.tokenizer == self.tokenizer else b"",
            embedder=found.embedder if found else "",
            tenant=message.tenant,
        )
        window = window or settings.chat_window
        wanted = wanted or settings.chat_window_tokens or (FIXED if window == "fixed" else None)
        limit = self.decoder.window - min(reserve, self.decoder.window // 2)
        limit = limit if wanted is None else min(limit, wanted)
        room = limit - self.frame - asked.count - self._beside(material)
        stuck = tokens(turn for turn in before if turn.pinned)
        if room < stuck:
            what = f"the message has {asked.count} tokens" + (f" and what is pinned {stuck}" if stuck else "")
            raise ContextTooLongError(f"{what}; there is room for {limit} with the marks around them")
        passages = self._quoted(material.passages or (), room, tokens(before), stuck)
        return Draft(message, asked, context, room - passages.tokens, window, material, passages)

    def prompt(self, draft: Draft, chosen: Chosen) -> Prompt:
        """Instructions come first, then what was said, then passages, facts and the question: what is in front of the
        passages is the same from turn to turn, and computed once. Raises TemplateError."""
        message, before = draft.message, draft.context
        turn = Turn(message.id, message.ts, [draft.asked], message.pinned or message.role in PINNED)
        dropped = before.dropped + len(before.turns) - len(chosen.held)
        context = msgspec.structs.replace(before, turns=[*chosen.held, turn], dropped=dropped)
        told = self._told(draft, [*chosen.turns, turn])
        if chosen.window == "sinks" and dropped:
            context.sinks = before.sinks or packed(self._told(draft, [*before.turns, turn])[:SINKS])
            sinks = tuple(unpacked(context.sinks))
            if told[:SINKS] != sinks:
                told = sinks + told[min(SINKS, len(self.wording.opening)) :]
        untold = dropped + len(chosen.held) - len(chosen.turns)
        return Prompt(told, context, untold, draft.quoted.citations)

    def _told(self, draft: Draft, turns: Sequence[Turn]) -> Tokens:
        """Turns with what is told beside them, and the beginning of a reply."""
        said = [_written(one) for turn in turns for one in turn.said]
        passages, facts = draft.quoted.text, draft.material.facts
        if passages or facts:
            said[-1] = self.wording.said(said[-1].role, put(passages, facts, draft.message.text), first=len(said) == 1)
        if draft.material.passages is not None:
            said = self._instructed(said)
        return self.wording.prompt(said)

    def _instructed(self, said: list[Written]) -> list[Written]:
        """With the instructions in front, behind those that the conversation begins with itself."""
        first = said[0]
        own = first.role == "system"
        text = f"{first.text}\n\n{INSTRUCTIONS}" if own else INSTRUCTIONS
        try:
            return [self.wording.said("system", text, first=True), *said[own:]]
        except TemplateError:  # a template that knows no such role: they stand in front of the passages then
            return [*said[:-1], self.wording.said(said[-1].role, f"{INSTRUCTIONS}\n\n{said[-1].text}")]

    def _quoted(self, found: Sequence[Found], room: int, turns: int, stuck: int) -> Quoted:
        """Passages in their share of the room. turns, stuck: tokens of those before, and of the pinned ones."""

        def count(text: str) -> int:
            return len(self.decoder.encode(text))

        whole = quoted(found, room, count) if found else NOTHING
        given = divided(room, turns, whole.tokens, stuck).passages
        return whole if given >= whole.tokens else quoted(found, given, count)

    def _beside(self, material: Material) -> int:
        """Tokens of instructions and facts, and of the words between them: they stay, whatever is cut."""
        words = put("x" if material.passages else "", material.facts, "")
        count = len(self.decoder.encode(words)) if words else 0
        return count if material.passages is None else count + self._instructions

    @cached_property
    def _instructions(self) -> int:
        """Tokens of them."""
        try:
            return len(self.wording.said("system", INSTRUCTIONS, first=True).tokens)
        except TemplateError:
            return len(self.decoder.encode(INSTRUCTIONS))

    @property
    def frame(self) -> int:
        """Tokens around what was said."""
        return len(self.wording.opening) + len(self.wording.head)

    def tokens(self, *turns: Turn) -> Tokens:
        """Turns, and the beginning of a reply. Raises TemplateError."""
        return self.wording.prompt([_written(one) for turn in turns for one in turn.said])

    def _before(self, message: Message, found: Context | None) -> tuple[list[Turn], int]:
        """The turns before the message, and how many of the session's the window had dropped before them."""
        if message.history is None:
            return ([], 0) if found is None else (self._ours(found).turns, found.dropped)
        held = [] if found is None else self._ours(found).turns
        replies = {one.text: one.tokens for turn in held for one in turn.said if one.role == "assistant"}
        vectors = {_texts(turn): turn.vector for turn in held}
        turns = self._turns(message.history, replies)
        for turn in turns:
            turn.vector = vectors.get(_texts(turn), b"")
        free = [turn for turn in turns if not turn.pinned]
        dropped = 0 if found is None else found.dropped
        first = next((_texts(turn) for turn in held if not turn.pinned), None)
        if not 0 < dropped < len(free) or _texts(free[dropped]) != first:
            return turns, 0
        # The same conversation: what the window has dropped stays so, or everything behind it were computed anew.
        gone = set(map(id, free[:dropped]))
        left = [turn for turn in turns if id(turn) not in gone]
        summary = next((turn for turn in held if turn.folded), None)
        if summary is None:
            return left, dropped
        if summary.summary != digest(free[:dropped]):
            return turns, 0
        left.insert(turns.index(free[0]), summary)
        return left, dropped

    def _turns(self, history: Iterable[Said], replies: dict[str, bytes]) -> list[Turn]:
        """replies: text -> the tokens that it was sampled as: they are another spelling of the same text."""
        turns: list[Turn] = []
        for said in history:
            if said.role == "assistant" and said.text in replies:
                one = Utterance("assistant", said.text, replies[said.text])
            else:
                one = self.utterance(said.role, said.text, first=not turns)
            pinned = said.role in PINNED
            if turns and not pinned and not turns[-1].pinned and (one.role == "assistant" or not _replied(turns[-1])):
                turns[-1].said.append(one)
            else:
                turns.append(Turn("", 0, [one], pinned))
        return turns

    def _ours(self, context: Context) -> Context:
        """With tokens of this version."""
        if context.tokenizer == self.tokenizer:
            return context
        turns: list[Turn] = []
        for turn in context.turns:
            said = [self.utterance(one.role, one.text, first=not turns) for one in turn.said]
            turns.append(msgspec.structs.replace(turn, said=said))
        return msgspec.structs.replace(context, turns=turns, tokenizer=self.tokenizer)

    def utterance(self, role: Speaker, text: str, *, first: bool = False) -> Utterance:
        """Something that is said, in tokens. first: whether nothing stands before it. Raises TemplateError."""
        written = self.wording.said("system" if role == "developer" else role, text, first=first)
        return Utterance(role, text, packed(written.tokens))


def _written(one: Utterance) -> Written:
    role = "system" if one.role == "developer" else one.role
    return Written(role, one.text, tuple(unpacked(one.tokens)))


def _replied(turn: Turn) -> bool:
    return turn.said[-1].role == "assistant"


def digest(turns: Iterable[Turn]) -> bytes:
    """Of what was said in turns that are folded: a summary among them stands for those that it was made of."""
    told = b""
    for turn in turns:
        told = turn.summary or hashlib.sha256(told + msgspec.json.encode(_texts(turn))).digest()
    return told


def _texts(turn: Turn) -> tuple[tuple[str, str], ...]:
    return tuple((one.role, one.text) for one in turn.said)


def _ttl_ms(message: Message, found: Context | None, settings: Settings) -> int | None:
    if message.ctx_ttl is not None:
        return int(1e3 * message.ctx_ttl)
    if found is not None:
        return found.ttl_ms
    return None if settings.ctx_ttl is None else int(1e3 * settings.ctx_ttl.total_seconds())
