"""A session's oldest turns, summed up by the model that answers it: a turn of work like a reply, in the session's
order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from msgspec.structs import replace

from agents.prompts import Draft, Prompts, digest
from core.errors import FatalError, HomunculusError, SummaryError, TaskError
from models.decoder.generation import Generation
from models.decoder.turn import Finish, Sampling
from models.decoder.wording import Tokens
from models.windows.summary import Fold, longest
from models.windows.turn import tokens
from tables.contexts import Turn, Utterance, packed

INSTRUCTION: Final = "Sum up our talk so far in a few sentences. Keep every name, number, date and wish."
"""Said by the user; the summary is what the model says to that, and both stay in the talk in the place of what they
stand for: so any template knows how to write them."""
CUT: Final = {Finish.CANCELLED: "it was stopped", Finish.DEADLINE: "it took half of the message's time"}
SMALLEST: Final = 16
"""Tokens. A window that has no room for so many has none for a summary."""

Make = Callable[[Tokens, Sampling], Awaitable[Generation]]
"""Has the model answer tokens, and returns once it has. Raises TaskError where the message is no longer ours."""


class Summarizer:
    """Makes at most one, for one message."""

    def __init__(self, prompts: Prompts, sampling: Sampling, make: Make, keep: Callable[[Draft], None]) -> None:
        """sampling: as the reply's own. keep: records the folded context at once, so that nobody makes this summary
        again."""
        self._prompts, self._sampling, self._make = prompts, sampling, make
        self.keep: Final = keep
        self.made = 0
        """Tokens of the summary."""

    async def summary(self, draft: Draft, old: list[Turn]) -> Turn:
        """A turn that stands for others. Raises SummaryError."""
        prompts = self._prompts
        asked = prompts.utterance("user", INSTRUCTION)
        most = longest(draft.room) - asked.count - prompts.frame
        if most < SMALLEST:
            raise SummaryError(f"a window with room for {draft.room} tokens has none for one")
        try:
            told = prompts.tokens(*self._told(draft, old, asked.count + most), Turn("", 0, [asked]))
            sampling = replace(self._sampling, temperature=0.0, max_tokens=most, stop=(), schema=None)
            generation = await self._make(told, sampling)
        except (TaskError, FatalError):
            raise
        except HomunculusError as error:
            raise SummaryError(str(error)) from error
        assert generation.usage is not None
        if (why := CUT.get(generation.usage.finish)) is not None:
            raise SummaryError(why)
        if not generation.text.strip():
            raise SummaryError("the model had nothing to say")
        self.made = generation.usage.new
        reply = prompts.wording.replied(generation.text, generation.tokens)
        said = [asked, Utterance("assistant", generation.text, packed(reply.tokens))]
        return Turn("", old[0].ts, said, pinned=True, summary=digest(old))

    def _told(self, draft: Draft, old: list[Turn], more: int) -> list[Turn]:
        """All up to the last turn that is folded, which is what the session's KV begins with; what is too much for the
        model goes, the oldest first."""
        turns = draft.context.turns
        last = max(n for n, turn in enumerate(turns) if turn is old[-1])
        told = list(turns[: last + 1])
        room = self._prompts.decoder.window - self._prompts.frame - more
        while tokens(told) > room:
            oldest = next((n for n, turn in enumerate(told) if not turn.pinned), None)
            if oldest is None:
                raise SummaryError(f"what is pinned has {tokens(told)} tokens; there is room for {room}")
            del told[oldest]
        return told


def folded(draft: Draft, parts: Fold[Turn], summary: Turn) -> Draft:
    """The draft with a summary in the place of what it stands for."""
    turns = draft.context.turns
    first = next(n for n, turn in enumerate(turns) if turn is parts.old[0])
    kept = list(parts.kept)
    kept.insert(first, summary)  # before the first that is folded there are pinned ones alone, which stay
    dropped = draft.context.dropped + sum(not turn.folded for turn in parts.old)
    return draft._replace(context=replace(draft.context, turns=kept, dropped=dropped))
