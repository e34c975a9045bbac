"""One reply on its way out: what anybody sees of it is recorded first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from typing import Self

import msgspec

from core.errors import TaskError
from core.messages import Citation, Finish, Message, Reply, Source, Usage
from core.topics import REPLIES
from engine.batch import Slice, current_slice
from engine.watches import Change
from models.decoder.decoder import Decoder
from models.decoder.generation import Generation
from tables.answers import KEPT_MS, Answer, answers
from tables.contexts import Context, contexts, packed
from tables.reusable import reusable
from tables.similar import Lesson, similar


class Writing:
    """Records a reply step by step in the table `answers`, and sends what is recorded to `replies`.

    With transactions a step and its part are one commit. Without them the part waits until its step is committed: a
    worker that takes over goes on with the tokens that are recorded, so nobody ever sees two texts of one reply.

        with Writing(s, message, known) as writing:
            await writing.follow(generation)
            await writing.end("stop", ...)
    """

    def __init__(self, s: Slice[Message], message: Message, known: Answer | None) -> None:
        """known: what is recorded of this very record's answer already."""
        self.s = s
        self.message = message
        self.source = str(s.source(0))
        until, worker = message.ts + KEPT_MS, s.task.engine.name
        self.answer = known or Answer(self.source, message.ts, until, worker=worker, tenant=message.tenant)
        self._place = answers.place(message.session, message.id)
        self._exact = s.task.engine.exactly_once
        self._follows = ExitStack()
        self._changes: AsyncIterator[Change] | None = None

    def __enter__(self) -> Self:
        if not self._exact:
            watches = self.s.task.engine.watches
            key = answers.encode_key(self._place)
            self._changes = self._follows.enter_context(watches.on(self.s.partition, answers.name, key))
        return self

    def __exit__(self, *_: object) -> None:
        self._follows.close()

    async def follow(self, generation: Generation, decoder: Decoder) -> None:
        """Sends what is made as it is made, behind what was recorded before. Returns at the end; raises what the
        generation raises, and TaskError where the partition has moved on."""
        before = self.answer.text
        if not self._exact and self.answer.ends:  # what was recorded may not have been told
            await self._committed()
            self._tell_parts(0)
        async for _ in generation:
            if self.s.stale:
                generation.cancel()
                raise TaskError(f"partition {self.s.partition} has moved on")
            text = before + generation.text
            answer = msgspec.structs.replace(
                self.answer,
                identity=decoder.identity,
                tokens=packed(generation.tokens),
                text=text,
                ends=[*self.answer.ends, len(text)] if len(text) > len(self.answer.text) else self.answer.ends,
                worker=self.s.task.engine.name,
                slot=-1 if (slot := decoder.slot(self.message.session)) is None else slot,
            )
            await self._step(answer)

    async def end(
        self,
        finish: Finish,
        *,
        text: str,
        source: Source = "model",
        why: str | None = None,
        error: str | None = None,
        model: tuple[str, str] | None = None,
        adapter: str | None = None,
        usage: Usage | None = None,
        context: Context | None = None,
        citations: Sequence[Citation] = (),
        stale: bool = False,
        key: str | None = None,
        lesson: Lesson | None = None,
        similar_to: str | None = None,
    ) -> None:
        """The final reply, with the session's context as it is now, if it has changed. model: name and version.
        adapter: NAME@VERSION. error: class of what is wrong. key: under which the answer may be given again. lesson:
        what it says of answers to similar questions."""
        message = self.message
        reply = Reply(
            id=f"{self.source}/{len(self.answer.ends)}",
            message_id=message.id,
            session=message.session,
            ts=message.ts,
            seq=len(self.answer.ends),
            text=text,
            final=True,
            source=source,
            model=model[0] if model else message.model,
            version=model[1] if model else None,
            adapter=adapter,
            finish=finish,
            why=why,
            error=error,
            usage=usage or Usage(),
            citations=list(citations),
            stale=stale,
            similar_to=similar_to,
        )
        with self.s.ahead():
            if context is not None:
                contexts[message.session] = context
            self._put(msgspec.structs.replace(self.answer, text=text, reply=reply, told=self._exact))
            if key is not None:
                reusable.note(key, self._place, self.source, message.ts)
            if lesson is not None:
                similar.learn(lesson, self._place, self.source, message.ts)
            if self._exact:
                self._send(reply)
        await self.tell()

    async def tell(self) -> None:
        """Sends the final reply where it is recorded and nobody has been told for sure."""
        if self.answer.told or self.answer.reply is None:
            return
        await self._committed()
        with self.s.ahead():
            self._put(msgspec.structs.replace(self.answer, told=True))
            assert self.answer.reply is not None
            self._send(self.answer.reply)

    async def _step(self, answer: Answer) -> None:
        told = len(self.answer.ends)
        with self.s.ahead():
            self._put(answer)
            if self._exact:
                self._tell_parts(told)
        if not self._exact:
            await self._committed()
            self._tell_parts(told)

    def _put(self, answer: Answer) -> None:
        answers[self._place] = answer
        self.answer = answer

    def _tell_parts(self, first: int) -> None:
        ends, message = self.answer.ends, self.message
        begins = [0, *ends]
        for seq in range(first, len(ends)):
            self._send(
                Reply(
                    id=f"{self.source}/{seq}",
                    message_id=message.id,
                    session=message.session,
                    ts=message.ts,
                    seq=seq,
                    text=self.answer.text[begins[seq] : ends[seq]],
                    final=False,
                    source="model",
                )
            )

    def _send(self, reply: Reply) -> None:
        s = current_slice()
        if s is self.s:
            with s.ahead():
                current_slice().send(REPLIES, self.message.session, reply)
        else:
            s.send(REPLIES, self.message.session, reply)

    async def _committed(self) -> None:
        """Returns once a commit has what was put last, which may be long ago."""
        assert self._changes is not None
        stored = self.s.task.shard(answers.name).stored(answers.encode_key(self._place))
        if stored is not None and answers.decode(stored) == self.answer:
            return
        async for raw, _ in self._changes:
            if raw is not None and answers.decode(raw) == self.answer:
                return
        raise TaskError(f"partition {self.s.partition} has moved on")
