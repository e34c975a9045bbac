"""messages -> context -> language model -> replies."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace

from agents.prompts import PINNED, Draft
from agents.speakers import Speaker, Speakers
from agents.summaries import Summarizer
from agents.windows import Windows
from agents.writing import Writing
from core.clock import latest_ms
from core.errors import FatalError, HomunculusError, NoModelError, OverloadedError, TaskError, TimeError
from core.messages import Finish, Message, Reply, Usage
from core.topics import MESSAGES, REPLIES
from engine.agent import Stream, agent
from engine.batch import Slice, current_slice
from engine.engine import Engine
from engine.gate import facts_of_message
from engine.task import PartitionTask
from models.decoder.generation import Generation
from models.decoder.turn import Finish as Ended
from models.decoder.turn import Sampling, Turn
from models.decoder.wording import Tokens
from tables.answers import answers
from tables.contexts import contexts

log = logging.getLogger(__name__)

TOGETHER = 512
"""Messages at work at once on a worker: the others wait on the broker. Most of these wait for the model."""
FUTURE_MS = 86_400_000
"""How far a message may be ahead of the clock."""
AGAIN_S = 0.2
"""Until a full queue is tried again."""
WHOLE: tuple[Finish, ...] = ("stop", "length")
"""Replies that a message gets again when it comes again; one that was cut short is tried anew."""
OUR_FAULT = "the worker failed on it; its log says how"
ENDS: dict[Ended, Finish] = {
    Ended.STOP: "stop",
    Ended.LENGTH: "length",
    Ended.CANCELLED: "cancelled",
    Ended.DEADLINE: "timeout",
}


@agent(MESSAGES)
async def chat(stream: Stream[Message]) -> None:
    """Answers every message: those of one session one after the other, sessions at the same time."""
    talk = Chat(stream.engine)
    await stream.each(talk.answer, TOGETHER, talk.overtakes)


@dataclass(slots=True)
class _Room:
    """What a partition has in its hands since it was opened, or its unfinished work was given back."""

    task: PartitionTask
    epoch: int
    waiting: Counter[str] = field(default_factory=Counter)
    """Session -> its messages that wait or are answered."""
    refused: set[int] = field(default_factory=set)
    """Offsets of messages that their session has no room for."""
    unwanted: set[tuple[str, str]] = field(default_factory=set)
    """Session and id of messages that were cancelled before their turn."""
    made: dict[tuple[str, str], Generation] = field(default_factory=dict)
    """Session and id of the message -> the reply that is made."""

    def left(self, session: str) -> None:
        """One of a session's messages waits no longer."""
        self.waiting[session] -= 1
        if not self.waiting[session]:
            del self.waiting[session]


class Chat:
    """All conversations of a worker."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.settings = engine.settings
        self._speakers = Speakers(engine)
        self._windows = Windows(engine.models, engine.settings)
        self._rooms: dict[int, _Room] = {}

    def overtakes(self, s: Slice[Message]) -> bool:
        """Asked of every message as it comes: whether it waits for none before it. A wish to stop one of those doesn't,
        nor does what its session has no room for."""
        if s.stale:
            return False
        message, room = s.events[0], self._room(s)
        if message.cancel is not None:
            return True
        if room.waiting[message.session] >= self.settings.chat_waiting:
            room.refused.add(s.first)
            return True
        room.waiting[message.session] += 1
        return False

    def _room(self, s: Slice[Message]) -> _Room:
        room = self._rooms.get(s.partition)
        if room is None or room.task is not s.task or room.epoch != s.epoch:
            for generation in room.made.values() if room is not None else ():
                generation.cancel()  # its message comes again, or belongs to another worker now
            room = self._rooms[s.partition] = _Room(s.task, s.epoch)
        return room

    async def answer(self, message: Message) -> None:
        """Returns when the final reply is on its way. Raises RecordError for what is no message."""
        s = current_slice()
        room, now = self._room(s), latest_ms()
        if message.ts > now + FUTURE_MS:
            raise TimeError(message.ts)
        if message.ts <= now:
            s.newest = message.ts
        if message.cancel is not None:
            self._stop(s, room, message)
        elif s.first in room.refused:
            room.refused.discard(s.first)
            why = f"{self.settings.chat_waiting} messages of this session wait for their turn already"
            await self._in_turn(s, room, message, ("BusyError", why))
        else:
            try:
                await self._in_turn(s, room, message, self._mistake(message))
            finally:
                room.left(message.session)

    async def _in_turn(self, s: Slice[Message], room: _Room, message: Message, mistake: tuple[str, str] | None) -> None:
        """mistake: why it isn't answered, as the class of an error and in words."""
        known = answers.get(answers.place(message.session, message.id))
        if known is not None and known.source != str(s.source(0)):
            if known.reply is not None and known.reply.finish in WHOLE:
                # The same message once more: it gets the reply that it has got.
                s.send(REPLIES, message.session, replace(known.reply, id=f"{s.source(0)}/{known.reply.seq}"))
                return
            if known.reply is None and mistake is not None and _at_work(s, known.source):
                # And while it is answered: what is recorded of that isn't this one's to change.
                _tell(s, message, "refused", *mistake)
                return
            known = None
        with Writing(s, message, known) as writing:
            if writing.answer.reply is not None:
                await writing.tell()
            elif (message.session, message.id) in room.unwanted:
                await writing.end("cancelled", text="", source="rule", why="it was cancelled before its turn came")
            elif mistake is not None:
                await writing.end("refused", text="", source="rule", error=mistake[0], why=mistake[1])
            elif not await self._stopped(writing):
                await self._try(writing, room)

    async def _stopped(self, writing: Writing) -> bool:
        """Whether a rule answers in the model's place. What it says isn't part of the talk."""
        gate, message = self._engine.gate, writing.message
        await gate.ready.wait()
        if writing.answer.tokens or not gate.applies(MESSAGES.name):
            return False
        found = contexts.alive(message.session, message.ts)
        began = next((turn.ts for turn in found.turns if turn.ts), None) if found else None
        turns = found.dropped + sum(not turn.folded for turn in found.turns) if found else 0
        facts = facts_of_message(message, began, turns)
        judgement = await gate.judge(MESSAGES.name, facts)
        if judgement is None:
            return False
        writing.message = replace(message, **judgement.changes)
        if judgement.verdict == "pass":
            return False
        why = "no rule lets it pass" if judgement.rule is None else f"rule {judgement.rule!r}"
        await writing.end("stop", text=judgement.reply, source="rule", why=why)
        return True

    async def _try(self, writing: Writing, room: _Room) -> None:
        try:
            await self._make(writing, room)
        except (TaskError, FatalError):
            raise
        except NoModelError as error:
            await writing.end("timeout", text="", source="rule", error=type(error).__name__, why=str(error))
        except HomunculusError as error:
            log.warning("%s is not answered: %s", writing.source, error)
            await _refuse(writing, type(error).__name__, str(error))
        except Exception:  # a fault of ours: somebody waits for a reply, and somebody else has to see the record
            await _refuse(writing, "WorkerError", OUR_FAULT)
            raise

    def _mistake(self, message: Message) -> tuple[str, str] | None:
        """What is wrong with a message by itself."""
        limit = self.settings.chat_max_text
        longest = max([len(message.text), *(len(said.text) for said in message.history or ())])
        if longest > limit:
            why = f"a text of {longest} characters is too long: {limit} are taken (HOMUNCULUS_CHAT_MAX_TEXT)"
            return "MessageError", why
        if not message.text.strip():
            return "MessageError", "the message has no text"
        return None

    async def _make(self, writing: Writing, room: _Room) -> None:
        s, message = writing.s, writing.message
        began = time.monotonic()
        seconds = min(self.settings.chat_seconds, message.seconds or self.settings.chat_seconds)
        speaker = await self._speakers.wait(message.model, s, began + seconds)
        with speaker:
            sampling = speaker.sampling(message, writing.source)
            draft = await speaker.draft(message, contexts.alive(message.session, message.ts), sampling.max_tokens)
            work = _Work(self, speaker, s, room, message, began + seconds)
            summarizer = Summarizer(speaker.prompts, sampling, work.whole, work.keep)
            draft, chosen = await self._windows.choose(draft, summarizer)
            prompt = await speaker.prompt(draft, chosen)
            model = speaker.model
            if message.role in PINNED or message.role == "assistant":  # to be remembered; nobody asks for an answer
                await writing.end("stop", text="", source="rule", model=model, context=prompt.context)
                return
            given = speaker.given(writing.answer)
            before = time.monotonic() - began
            async with work.under_way(prompt.tokens, sampling, given, shifts=chosen.window == "sinks") as generation:
                await writing.follow(generation, speaker.decoder)
            if s.stale:
                raise TaskError(f"partition {s.partition} has moved on")
            assert generation.usage is not None
            told, text = generation.usage, writing.answer.text
            finish = ENDS[told.finish]
            usage = Usage(
                prompt_tokens=told.prompt,
                cached_tokens=told.cached,
                completion_tokens=told.new,
                wait_ms=round(1e3 * (before + told.queued_s), 1),
                first_token_ms=round(1e3 * (before + told.first_s), 1),
                total_ms=round(1e3 * (time.monotonic() - began), 1),
                resumed_tokens=len(given),
                dropped_turns=prompt.untold,
                window=chosen.window,
                fallback=chosen.fallback,
                summary_tokens=summarizer.made,
                approximate_tokens=told.shifted,
            )
            said = speaker.prompts.wording.replied(text, generation.tokens) if text else None
            why = None
            if finish == "length":
                why = f"it would be longer than {told.new} tokens"
            elif finish == "timeout":
                why = f"{seconds:g} s are over"
            context = prompt.answered(said) if said is not None or finish in WHOLE else None
            await writing.end(finish, text=text, why=why, model=model, usage=usage, context=context)

    def _stop(self, s: Slice[Message], room: _Room, message: Message) -> None:
        """Stops a reply, or keeps it from being begun; the wish itself is answered once what was before it is."""
        place = (message.session, message.cancel or "")
        why = None
        if (generation := room.made.get(place)) is not None:
            generation.cancel()
        elif any(place == (m.session, m.id) and m is not message for m in _unanswered(s)):
            room.unwanted.add(place)
        else:
            known = answers.get(answers.place(*place))
            why = "it is answered already" if known and known.reply else "the session has no such message at work"
        _tell(s, message, "cancelled" if why is None else "refused", None, why)


def _tell(s: Slice[Message], message: Message, finish: Finish, error: str | None, why: str | None) -> None:
    """A final reply that leaves once all before it are answered, and is recorded nowhere."""
    reply = Reply(
        id=f"{s.source(0)}/0",
        message_id=message.id,
        session=message.session,
        ts=message.ts,
        seq=0,
        text="",
        final=True,
        source="rule",
        finish=finish,
        error=error,
        why=why,
    )
    s.send(REPLIES, message.session, reply)


def _at_work(s: Slice[Message], source: str) -> bool:
    """Whether a message that isn't answered stands there."""
    return any(str(other.source(0)) == source for other in s.task.unfinished() if not other.done)


def _unanswered(s: Slice[Message]) -> list[Message]:
    """Messages of its partition that wait or are answered."""
    others = (other for other in s.task.unfinished() if other.topic == s.topic and not other.done)
    return [event for other in others for event in other.events]


async def _refuse(writing: Writing, error: str, why: str) -> None:
    await writing.end("refused", text=writing.answer.text, source="rule", error=error, why=why)


class _Work:
    """What a model is asked for one message, so that it can be stopped."""

    def __init__(self, chat: Chat, speaker: Speaker, s: Slice[Message], room: _Room, message: Message, until: float):
        """until: monotonic."""
        self._exact = chat.settings.chat_exact
        self._speaker, self._s, self._room, self._message, self._until = speaker, s, room, message, until
        self._place = (message.session, message.id)

    @asynccontextmanager
    async def under_way(
        self, tokens: Tokens, sampling: Sampling, given: Tokens = (), *, shifts: bool = False, share: float = 1.0
    ) -> AsyncIterator[Generation]:
        """The reply to tokens, which ends with the block. share: of the time that is left. Raises OverloadedError where
        the queue stays full."""
        room, message = self._room, self._message
        turn = Turn(
            session=message.session,
            tokens=tokens,
            sampling=sampling,
            given=given,
            priority=message.priority,
            within_s=share * (self._until - time.monotonic()),
            exact=self._exact,
            shifts=shifts,
        )
        generation = await _submit(self._speaker, turn, self._until, self._s)
        room.made[self._place] = generation
        if self._place in room.unwanted:
            generation.cancel()
        try:
            yield generation
        except BaseException:
            generation.cancel()
            raise
        finally:
            room.made.pop(self._place, None)

    async def whole(self, tokens: Tokens, sampling: Sampling) -> Generation:
        """A reply that nobody is told of, in half of the time that is left. A wish to stop it is one to stop all."""
        async with self.under_way(tokens, sampling, share=0.5) as generation:
            async for _ in generation:
                if self._s.stale:
                    break
        if self._s.stale:
            raise TaskError(f"partition {self._s.partition} has moved on")
        assert generation.usage is not None
        if generation.usage.finish is Ended.CANCELLED:
            self._room.unwanted.add(self._place)
        return generation

    def keep(self, draft: Draft) -> None:
        """The session's context is this from now on, whatever becomes of the message."""
        with self._s.ahead():
            contexts[self._message.session] = draft.context


async def _submit(speaker: Speaker, turn: Turn, until: float, s: Slice[Message]) -> Generation:
    """Raises OverloadedError where the queue stays full."""
    while True:
        try:
            return speaker.decoder.submit(turn)
        except OverloadedError:
            if time.monotonic() + AGAIN_S > until or s.stale:
                raise
            await asyncio.sleep(AGAIN_S)
