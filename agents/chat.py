"""messages -> context -> language model -> replies."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from agents.grounding import AWAY, UNKNOWN, Ground
from agents.likeness import Likeness
from agents.prompts import ALONE, PINNED, Chosen, Material, Prompt
from agents.room import Room
from agents.sources import Inquiry, Sources
from agents.speakers import Speaker, Speakers
from agents.summaries import Summarizer
from agents.windows import Windows
from agents.work import Work
from agents.writing import Writing
from core.clock import latest_ms
from core.errors import (
    ContextTooLongError,
    FatalError,
    HomunculusError,
    KnowledgeAwayError,
    NoModelError,
    TaskError,
    TimeError,
)
from core.messages import Finish, Message, Reply, Usage
from core.topics import MESSAGES, REPLIES
from engine.agent import Stream, agent
from engine.batch import Slice, current_slice
from engine.engine import Engine
from models.decoder.turn import Finish as Ended
from models.decoder.turn import Sampling
from models.knowledge.quoting import cited
from tables.answers import Answer, answers
from tables.contexts import contexts, unpacked
from tables.similar import Lesson

log = logging.getLogger(__name__)

TOGETHER = 512
"""Messages at work at once on a worker: the others wait on the broker. Most of these wait for the model."""
FUTURE_MS = 86_400_000
"""How far a message may be ahead of the clock."""
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


class Chat:
    """All conversations of a worker."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._settings = engine.settings
        self._speakers = Speakers(engine)
        self._windows = Windows(engine.models, engine.settings)
        self._sources = Sources(engine)
        self._rooms: dict[int, Room] = {}

    def overtakes(self, s: Slice[Message]) -> bool:
        """Asked of every message as it comes: whether it waits for none before it. A wish to stop one of those doesn't,
        nor does what its session has no room for."""
        if s.stale:
            return False
        message, room = s.events[0], self._room(s)
        if message.cancel is not None:
            return True
        if room.waiting[message.session] >= self._settings.chat_waiting:
            room.refused.add(s.first)
            return True
        room.waiting[message.session] += 1
        return False

    def _room(self, s: Slice[Message]) -> Room:
        room = self._rooms.get(s.partition)
        if room is None or room.task is not s.task or room.epoch != s.epoch:
            for generation in room.made.values() if room is not None else ():
                generation.cancel()  # its message comes again, or belongs to another worker now
            room = self._rooms[s.partition] = Room(s.task, s.epoch)
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
            why = f"{self._settings.chat_waiting} messages of this session wait for their turn already"
            await self._in_turn(s, room, message, ("BusyError", why))
        else:
            try:
                await self._in_turn(s, room, message, self._mistake(message))
            finally:
                room.left(message.session)

    async def _in_turn(self, s: Slice[Message], room: Room, message: Message, mistake: tuple[str, str] | None) -> None:
        """mistake: why it isn't answered, as the class of an error and in words."""
        known = answers.get(answers.place(message.session, message.id))
        if known is not None and known.tenant != message.tenant:
            known = None  # whose it is nobody else is told
        if known is not None and known.source != str(s.source(0)):
            whole = known.reply is not None and known.reply.finish in WHOLE
            if known.reply is not None and whole and await self._sources.stands(message.tenant, known.reply.citations):
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
            else:
                inquiry = Inquiry(contexts.alive(message.session, message.ts, message.tenant))
                if not await self._stopped(writing, inquiry):
                    await self._try(writing, room, inquiry)

    async def _stopped(self, writing: Writing, inquiry: Inquiry) -> bool:
        """Whether a rule answers in the model's place. What it says isn't part of the talk."""
        gate, message = self._engine.gate, writing.message
        await gate.ready.wait()
        await self._sources.tell(inquiry, message)
        if writing.answer.tokens or not gate.applies(MESSAGES.name):
            return False
        judgement = await gate.judge(MESSAGES.name, inquiry.told)
        if judgement is None:
            return False
        writing.message = replace(message, **judgement.changes)
        if judgement.verdict == "pass":
            return False
        why = "no rule lets it pass" if judgement.rule is None else f"rule {judgement.rule!r}"
        await writing.end("stop", text=judgement.reply, source="rule", why=why)
        return True

    async def _try(self, writing: Writing, room: Room, inquiry: Inquiry) -> None:
        try:
            await self._make(writing, room, inquiry)
        except (TaskError, FatalError):
            raise
        except NoModelError as error:
            await writing.end("timeout", text="", source="rule", error=type(error).__name__, why=str(error))
        except KnowledgeAwayError as error:
            await writing.end("stop", text=AWAY, source="rule", why=str(error), stale=True)
        except HomunculusError as error:
            log.warning("%s is not answered: %s", writing.source, error)
            await _refuse(writing, type(error).__name__, str(error))
        except Exception:  # a fault of ours: somebody waits for a reply, and somebody else has to see the record
            await _refuse(writing, "WorkerError", OUR_FAULT)
            raise

    def _mistake(self, message: Message) -> tuple[str, str] | None:
        """What is wrong with a message by itself."""
        limit = self._settings.chat_max_text
        longest = max([len(message.text), *(len(said.text) for said in message.history or ())])
        if longest > limit:
            why = f"a text of {longest} characters is too long: {limit} are taken (HOMUNCULUS_CHAT_MAX_TEXT)"
            return "MessageError", why
        if not message.text.strip():
            return "MessageError", "the message has no text"
        return None

    async def _make(self, writing: Writing, room: Room, inquiry: Inquiry) -> None:
        s, message, sources = writing.s, writing.message, self._sources
        began = time.monotonic()
        seconds = min(self._settings.chat_seconds, message.seconds or self._settings.chat_seconds)
        until, resumed = began + seconds, bool(writing.answer.tokens)
        try:
            await sources.begin(inquiry, message, s, until)
        except KnowledgeAwayError:
            if not resumed:
                raise
            inquiry.query = None  # parts of the reply are told: it goes on from them alone
        if sources.quotes(inquiry, message) and not resumed:
            await self._quote(writing, room, inquiry, until)
            return
        speaker = await self._speakers.wait(message.model, s, until, message.adapter)
        with speaker:
            sampling = speaker.sampling(message, writing.source)
            work = Work(self._settings.chat_exact, speaker, s, room, message, until)
            identity = speaker.identity
            likeness = None
            if not resumed:
                reused, likeness = await self._reused(writing, work, inquiry, sampling, identity, began)
                if reused:
                    return
            ground = await sources.ground(inquiry, message)
            judged = partial(sources.lesson, likeness, inquiry, message, sampling, identity, ground)
            if ground is not None and not ground.found and not resumed:
                await _unknown(writing, ground, None if ground.stale else judged(UNKNOWN, keep=False))
                return
            material = Material(None if ground is None else ground.found, inquiry.facts)
            asked = await self._asked(work, inquiry, sampling, material)
            prompt, model = asked.prompt, speaker.model
            if message.role in PINNED or message.role == "assistant":  # to be remembered; nobody asks for an answer
                await writing.end("stop", text="", source="rule", model=model, context=prompt.context)
                return
            given = speaker.given(writing.answer)
            before, shifts = time.monotonic() - began, asked.chosen.window == "sinks"
            async with work.under_way(prompt.tokens, sampling, given, shifts=shifts) as generation:
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
                window=asked.chosen.window,
                fallback=asked.chosen.fallback,
                summary_tokens=asked.summary,
                approximate_tokens=told.shifted,
            )
            said = speaker.prompts.wording.replied(text, generation.tokens) if text else None
            why = None
            if finish == "length":
                why = f"it would be longer than {told.new} tokens"
            elif finish == "timeout":
                why = f"{seconds:g} s are over"
            there = cited(text, await sources.there(ground, prompt.citations))
            stale = ground is not None and ground.stale
            whole = finish in WHOLE and len(there) == len(prompt.citations) and not stale
            await writing.end(
                finish,
                text=text,
                why=why,
                model=model,
                adapter=speaker.adapter.manifest.identity if speaker.adapter is not None else None,
                usage=usage,
                context=prompt.answered(said) if said is not None or finish in WHOLE else None,
                citations=there,
                stale=stale,
                key=sources.key(inquiry, message, sampling, identity, ground) if whole and not resumed else None,
                lesson=judged(text, there) if whole else None,
            )

    async def _asked(self, work: Work, inquiry: Inquiry, sampling: Sampling, material: Material) -> _Asked:
        """The prompt for a message, once its window has chosen."""
        speaker, message = work.speaker, work.message
        draft = await speaker.draft(message, inquiry.found, sampling.max_tokens, material)
        summarizer = Summarizer(speaker.prompts, sampling, work.whole, work.keep)
        draft, chosen = await self._windows.choose(draft, summarizer)
        return _Asked(speaker, await speaker.prompt(draft, chosen), chosen, summarizer.made)

    async def _reused(
        self, writing: Writing, work: Work, inquiry: Inquiry, sampling: Sampling, identity: str, began: float
    ) -> tuple[bool, Likeness | None]:
        """Whether an answer of before is given; and where none is, what was decided by a similar question."""
        message, sources = writing.message, self._sources
        known = await sources.again(sources.key(inquiry, message, sampling, identity), message.tenant)
        likeness, similar_to = None, None
        if known is None:
            likeness = await sources.likeness(inquiry, message, sampling, identity, writing.source)
            if likeness is None or (near := likeness.given) is None:
                return False, likeness
            known, similar_to = (near.answer, near.reply), near.source
        asked = await self._asked(work, inquiry, sampling, ALONE)
        await self._repeat(writing, asked, *known, began, similar_to)
        if similar_to is not None:
            sources.given()
        return True, None

    async def _repeat(
        self, writing: Writing, asked: _Asked, answer: Answer, reply: Reply, began: float, similar_to: str | None
    ) -> None:
        """An answer that was given for the same reasons before; similar_to: or to the similar question that stands
        there."""
        said = asked.speaker.prompts.wording.replied(reply.text, unpacked(answer.tokens)) if reply.text else None
        await writing.end(
            reply.finish or "stop",
            text=reply.text,
            source="cache",
            why=reply.why,
            model=asked.speaker.model,
            adapter=reply.adapter,
            usage=Usage(total_ms=round(1e3 * (time.monotonic() - began), 1)),
            context=asked.prompt.answered(said),
            citations=reply.citations,
            stale=reply.stale,
            similar_to=similar_to,
        )

    async def _quote(self, writing: Writing, room: Room, inquiry: Inquiry, until: float) -> None:
        """A document's own words are the answer. They are part of the talk where there is a model to talk with."""
        message = writing.message
        ground = await self._sources.ground(inquiry, message)
        assert ground is not None
        if not ground.found:
            await _unknown(writing, ground)
            return
        began = time.monotonic()
        quote = await self._sources.quote(inquiry, ground)
        context = None
        if (speaker := self._speakers.now(message.model, message.adapter)) is not None:
            with speaker, suppress(ContextTooLongError):
                work = Work(self._settings.chat_exact, speaker, writing.s, room, message, until)
                sampling = speaker.sampling(message, writing.source)
                asked = await self._asked(work, inquiry, sampling, ALONE)
                context = asked.prompt.answered(speaker.prompts.wording.replied(quote.text, ()))
        there = await self._sources.there(ground, quote.citations)
        if not there:  # deleted in between
            await _unknown(writing, ground)
            return
        usage = Usage(total_ms=round(1e3 * (time.monotonic() - began), 1))
        await writing.end(
            "stop", text=quote.text, source="passage", usage=usage, context=context, citations=there, stale=ground.stale
        )

    def _stop(self, s: Slice[Message], room: Room, message: Message) -> None:
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


async def _unknown(writing: Writing, ground: Ground, lesson: Lesson | None = None) -> None:
    """Nothing that is known has to do with it: that is said in place of a guess, and isn't part of the talk."""
    why = "no passage answers it"
    await writing.end("stop", text=UNKNOWN, source="rule", why=why, stale=ground.stale, lesson=lesson)


async def _refuse(writing: Writing, error: str, why: str) -> None:
    await writing.end("refused", text=writing.answer.text, source="rule", error=error, why=why)


class _Asked(NamedTuple):
    """A message as it is put to a model."""

    speaker: Speaker
    prompt: Prompt
    chosen: Chosen
    summary: int
    """Tokens of a summary that was made for it."""
