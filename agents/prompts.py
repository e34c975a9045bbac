"""What a model is asked: the session's context, moved on to the message that is to be answered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from core.errors import ContextTooLongError
from core.messages import Message, Said, Speaker
from core.settings import Settings
from models.decoder.decoder import Decoder
from models.decoder.wording import Tokens, Wording, Written
from models.language import TEMPLATE
from tables.contexts import FIXED, WINDOWS, Context, Turn, Utterance, packed, unpacked

PINNED: tuple[Speaker, ...] = ("system", "developer")


class Prompt(NamedTuple):
    """What is asked, and what the context is once it is answered."""

    tokens: Tokens
    context: Context
    """With the new turn, whose reply is still to come."""

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

    def prompt(self, message: Message, found: Context | None, reserve: int) -> Prompt:
        """found: what the session holds. reserve: tokens of the window that the reply may want.

        Raises ContextTooLongError where the message, or what is pinned, leaves no room for the rest, and TemplateError.
        """
        settings = self._settings
        before, dropped = self._before(message, found)
        pinned = message.pinned or message.role in PINNED
        asked = self._utterance(message.role, message.text, first=not before)
        limit = self.decoder.window - min(reserve, self.decoder.window // 2)
        if (wanted := settings.chat_window_tokens or (FIXED if settings.chat_window == "fixed" else None)) is not None:
            limit = min(limit, wanted)
        room = limit - len(self.wording.opening) - len(self.wording.head) - asked.count
        stuck = sum(turn.count for turn in before if turn.pinned)
        if room < stuck:
            what = f"the message has {asked.count} tokens" + (f" and what is pinned {stuck}" if stuck else "")
            raise ContextTooLongError(f"{what}; there is room for {limit} with the marks around them")
        kept = WINDOWS[settings.chat_window](before, room)
        turn = Turn(message.id, message.ts, [asked], pinned)
        ttl_ms = found.ttl_ms if found is not None else _ms(settings)
        context = Context(
            ts=max(message.ts, found.ts if found is not None else 0),
            ttl_ms=int(1e3 * message.ctx_ttl) if message.ctx_ttl is not None else ttl_ms,
            tokenizer=self.tokenizer,
            turns=[*kept, turn],
            dropped=dropped + len(before) - len(kept),
        )
        return Prompt(self.wording.prompt([_written(one) for t in context.turns for one in t.said]), context)

    def _before(self, message: Message, found: Context | None) -> tuple[list[Turn], int]:
        """The turns before the message, and how many of the session's the window had dropped before them."""
        if message.history is None:
            return ([], 0) if found is None else (self._ours(found).turns, found.dropped)
        held = [] if found is None else self._ours(found).turns
        replies = {one.text: one.tokens for turn in held for one in turn.said if one.role == "assistant"}
        turns = self._turns(message.history, replies)
        free = [turn for turn in turns if not turn.pinned]
        dropped = 0 if found is None else found.dropped
        first = next((_texts(turn) for turn in held if not turn.pinned), None)
        if not 0 < dropped < len(free) or _texts(free[dropped]) != first:
            return turns, 0
        # The same conversation: what the window has dropped stays so, or everything behind it were computed anew.
        gone = set(map(id, free[:dropped]))
        return [turn for turn in turns if id(turn) not in gone], dropped

    def _turns(self, history: Iterable[Said], replies: dict[str, bytes]) -> list[Turn]:
        """replies: text -> the tokens that it was sampled as: they are another spelling of the same text."""
        turns: list[Turn] = []
        for said in history:
            if said.role == "assistant" and said.text in replies:
                one = Utterance("assistant", said.text, replies[said.text])
            else:
                one = self._utterance(said.role, said.text, first=not turns)
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
            said = [self._utterance(one.role, one.text, first=not turns) for one in turn.said]
            turns.append(msgspec.structs.replace(turn, said=said))
        return msgspec.structs.replace(context, turns=turns, tokenizer=self.tokenizer)

    def _utterance(self, role: Speaker, text: str, *, first: bool) -> Utterance:
        written = self.wording.said("system" if role == "developer" else role, text, first=first)
        return Utterance(role, text, packed(written.tokens))


def _written(one: Utterance) -> Written:
    role = "system" if one.role == "developer" else one.role
    return Written(role, one.text, tuple(unpacked(one.tokens)))


def _replied(turn: Turn) -> bool:
    return turn.said[-1].role == "assistant"


def _texts(turn: Turn) -> Sequence[tuple[str, str]]:
    return [(one.role, one.text) for one in turn.said]


def _ms(settings: Settings) -> int | None:
    return None if settings.ctx_ttl is None else int(1e3 * settings.ctx_ttl.total_seconds())
