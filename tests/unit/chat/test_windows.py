"""What a session was told early on, and can still be asked when much has been said since: by the window it has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agents.chat import chat
from agents.summaries import INSTRUCTION
from core.errors import GenerationError
from core.events import Deployment
from core.messages import Message as Told
from core.messages import Reply, Said
from core.rules import RuleSet
from engine.testing import in_memory
from models.decoder.generation import Generation
from models.decoder.message import Message
from models.decoder.turn import Turn
from models.deployed import Deployed
from models.embedder.embedder import Embedder
from models.live import LiveModels
from models.routing import Routing
from models.swap import Course, Stage
from models.version import LiveVersion
from tables.answers import answers
from tables.contexts import Turn as Kept
from tables.contexts import contexts
from tables.reusable import reusable
from tests.unit.chat.conftest import Talk, talking
from tests.unit.chat.standin import StandIn, live

FACT = "the code of the blue door is 4711"
QUESTION = "what is the code of the blue door?"
CHATTER = 14


class Summing(StandIn):
    """What it is to sum up it says the numbers of four digits of."""

    silent = failing = stuck = waits_behind = False
    cut = 10**9
    """Tokens of a summary, at which it gets stuck."""

    def sums_up(self, tokens: Sequence[int]) -> bool:
        return self.decode(tokens).endswith(INSTRUCTION)

    def submit(self, turn: Turn) -> Generation:
        if self.failing and self.sums_up(turn.tokens):
            raise GenerationError("the model failed: no")
        return super().submit(turn)

    def says(self, tokens: Sequence[int]) -> str:
        if not self.sums_up(tokens):
            return super().says(tokens)
        return "" if self.silent else f"numbers: {', '.join(re.findall(r'[0-9]{4}', self.decode(tokens))) or 'none'}"

    def most_of(self, turn: Turn) -> int:
        if not self.sums_up(turn.tokens):
            behind = len(self.turns) > 1 and self.sums_up(self.turns[-2].tokens)
            return 0 if self.waits_behind and behind else self.most
        self.stuck = self.stuck or self.cut == 3
        return self.cut


class Bare(StandIn):
    """Its template has no system message of its own."""

    def render(self, messages: Sequence[Message], *, generate: bool = True) -> tuple[int, ...]:
        own = super().render([])
        tokens = super().render(messages, generate=generate)
        return tokens[len(own) - 2 :] if tokens[: len(own) - 2] == own[:-2] else tokens


class Words(Embedder):
    """Texts are as like as they have words in common."""

    def __init__(self, version: str = "1") -> None:
        self.identity = f"words@{version}"
        self.asked: list[str] = []
        self.failing = False
        named: Any = self
        named.manifest = SimpleNamespace(name="words", version=version, identity=self.identity)

    async def question(self, text: str) -> NDArray[np.float32]:
        return self._of(text)

    async def passages(self, texts: Sequence[str], *, aside: bool = True) -> NDArray[np.float32]:
        if self.failing:
            raise RuntimeError("it has no memory left")
        self.asked += texts
        return np.array([self._of(text) for text in texts], np.float32).reshape(-1, 64)

    def _of(self, text: str) -> NDArray[np.float32]:
        vector = np.full(64, 1e-3, np.float32)
        for word in re.findall(r"\w+", text.lower()):
            vector[sum(map(ord, word)) % 64] += 1
        return vector / np.float32(np.linalg.norm(vector))

    def close(self) -> None:
        pass


def embedding(models: LiveModels, embedder: Words) -> None:
    """Makes it the embedder."""
    course = Course(embedder.identity)
    for stage in (Stage.VERIFYING, Stage.WARMING):
        course.to(stage)
    deployment = Deployment(model="words", revision=1, active=embedder.manifest.version, since=0)
    model = models._models.setdefault("words", Deployed(deployment))
    models._flip(model, Routing("words", LiveVersion(embedder.manifest, embedder, course)))


def told(talk: Talk) -> str:
    """What the model was told last, as text."""
    return talk.model.decode(talk.model.turns[-1].tokens)


def summaries(talk: Talk) -> list[Turn]:
    """What it was asked to sum up."""
    return [turn for turn in talk.model.turns if talk.model.decode(turn.tokens).endswith(INSTRUCTION)]


def summary_of(talk: Talk) -> Kept | None:
    """The committed one of the session."""
    context = talk.context("ann")
    return next((turn for turn in context.turns if turn.folded), None) if context else None


async def chatter(talk: Talk, session: str = "ann", turns: int = CHATTER) -> None:
    """Talk of something else, more of it than fits."""
    for n in range(turns):
        await talk.ask(session, f"weather number {n} {'x' * 40}")


async def asked_late(talk: Talk, **more: Any) -> Reply:
    """A fact, much talk of other things, and a question about the fact."""
    await talk.ask("ann", FACT, **more)
    await chatter(talk)
    return await talk.ask("ann", QUESTION)


def small(window: str, **more: Any) -> dict[str, Any]:
    return {"chat_window": window, "chat_max_tokens": 100, **more}


async def test_recent_has_forgotten_what_was_said_before_its_room() -> None:
    async with talking(StandIn(window=1000), **small("recent")) as talk:
        reply = await asked_late(talk)
        assert "4711" not in told(talk)
        assert reply.usage is not None
        assert reply.usage.window == "recent"
        assert reply.usage.dropped_turns > 0


@pytest.mark.parametrize("window", ["recent", "fixed", "semantic", "summary", "sinks"])
async def test_a_pinned_fact_can_be_asked_under_every_window(window: str) -> None:
    async with talking(StandIn(window=1000), **small(window)) as talk:
        await asked_late(talk, pinned=True)
        assert FACT in told(talk)


async def test_semantic_tells_of_early_turns_that_are_about_the_question() -> None:
    async with talking(StandIn(window=1000), **small("semantic")) as talk:
        embedder = Words()
        embedding(talk.trial.models, embedder)
        reply = await asked_late(talk)
        prompt = told(talk)
        assert FACT in prompt
        assert f"weather number {CHATTER - 1}" in prompt, "and of the newest"
        assert prompt.index(FACT) < prompt.index("weather number"), "in the order in which they were said"
        assert reply.usage is not None
        assert (reply.usage.window, reply.usage.fallback) == ("semantic", None)
        assert reply.usage.dropped_turns > 0
        context = talk.context("ann")
        assert context is not None
        assert context.dropped == 0, "a later question may be about any of them"
        assert len(embedder.asked) == len(set(embedder.asked)), "a turn's vector is made once"


async def test_semantic_without_an_embedder_is_recent_and_says_so_and_forgets_nothing() -> None:
    async with talking(StandIn(window=1000), **small("semantic")) as talk:
        reply = await asked_late(talk)
        assert "4711" not in told(talk)
        assert reply.usage is not None
        assert (reply.usage.window, reply.usage.fallback) == ("recent", "no embedder is live on this worker")
        embedder = Words()
        embedding(talk.trial.models, embedder)
        await talk.ask("ann", QUESTION)
        assert FACT in told(talk)
        embedder.failing = True
        embedding(talk.trial.models, other := Words("2"))
        other.failing = True
        reply = await talk.ask("ann", QUESTION)
        assert reply.usage is not None
        assert reply.usage.fallback == "the embedder failed: it has no memory left"


async def test_another_embedder_makes_the_vectors_anew() -> None:
    async with talking(StandIn(window=1000), **small("semantic")) as talk:
        embedding(talk.trial.models, Words())
        await asked_late(talk)
        embedding(talk.trial.models, other := Words("2"))
        await talk.ask("ann", QUESTION)
        assert FACT in told(talk)
        assert len(other.asked) == CHATTER + 2
        assert talk.context("ann").embedder == "words@2"  # type: ignore[union-attr]


async def test_a_client_that_sends_its_history_again_has_vectors_made_once() -> None:
    async with talking(StandIn(window=1000), **small("semantic")) as talk:
        embedding(talk.trial.models, embedder := Words())
        said: list[Said] = []
        for n in range(CHATTER):
            text = f"weather number {n} {'x' * 40}"
            reply = await talk.ask("ann", text, history=list(said))
            said += [Said("user", text), Said("assistant", reply.text)]
        assert len(embedder.asked) == len(set(embedder.asked)) > 5


async def test_summary_tells_of_what_was_dropped_in_the_models_own_words() -> None:
    async with talking(Summing(window=1000), **small("summary")) as talk:
        reply = await asked_late(talk)
        assert "4711" in told(talk), "the model kept the number"
        assert FACT not in told(talk)
        assert reply.usage is not None
        assert reply.usage.window == "summary"
        context = talk.context("ann")
        assert context is not None
        assert [turn.folded for turn in context.turns].count(True) == 1
        assert context.dropped + len(context.turns) - 1 == CHATTER + 2
        replies = [one for [one] in talk.finals().values()]
        made = [one.usage.summary_tokens for one in replies if one.usage is not None and one.usage.summary_tokens]
        assert 1 < len(made) == len(summaries(talk)) < CHATTER / 2, "now and then"
        assert "Sum up" not in "".join(one.text for one in replies), "nobody is told of the work"


async def test_a_summary_goes_on_what_the_model_has_computed() -> None:
    async with talking(Summing(window=1000), **small("summary")) as talk:
        await asked_late(talk)
        turn = summaries(talk)[0]
        before = talk.model.turns[talk.model.turns.index(turn) - 1]
        same = next((i for i, (a, b) in enumerate(zip(before.tokens, turn.tokens, strict=False)) if a != b), 0)
        assert len(turn.tokens) - same < 120, "its own instruction is all that is new"


async def test_system_messages_and_pinned_turns_are_never_folded() -> None:
    async with talking(Summing(window=1000), **small("summary")) as talk:
        await talk.ask("ann", "you are a pirate", role="system")
        await talk.ask("ann", "my name is Ann", pinned=True)
        await asked_late(talk)
        context = talk.context("ann")
        assert context is not None
        assert [turn.said[0].text for turn in context.turns[:3]] == ["you are a pirate", "my name is Ann", INSTRUCTION]


async def until_summed_up(talk: Talk) -> Told:
    """Talk until the session is summed up. Returns the message whose reply is still to come."""
    await talk.ask("ann", FACT)
    while True:
        message = await talk.say("ann", f"weather {'x' * 60}")
        await talk.until(lambda: message.id in talk.finals() or summaries(talk))  # noqa: B023
        if summaries(talk):
            return message


async def test_a_crash_behind_a_summary_makes_no_second_one() -> None:
    async with talking(model := Summing(window=1000), **small("summary")) as talk:
        model.waits_behind = True
        message = await until_summed_up(talk)
        await talk.until(lambda: summary_of(talk))
        summary = summary_of(talk)
        assert message.id not in talk.finals()
        model.waits_behind = False
        await talk.crash()
        await talk.trial.settle()
        assert talk.final(message.id).finish == "stop"
        assert len(summaries(talk)) == 1
        assert summary_of(talk) == summary
        assert summary is not None
        assert "4711" in summary.said[1].text


async def test_a_crash_in_the_middle_of_a_summary_makes_it_anew_and_nobody_hears_of_it() -> None:
    texts = []
    for cut in (10**9, 3):
        async with talking(model := Summing(window=1000), **small("summary")) as talk:
            model.cut = cut
            message = await until_summed_up(talk)
            if cut == 3:
                await talk.until(lambda: model.stuck)
                assert summary_of(talk) is None
                model.cut = 10**9
                await talk.crash()
            await talk.trial.settle()
            texts.append(talk.final(message.id).text)
            assert len(summaries(talk)) == (2 if cut == 3 else 1)
            assert {len(replies) for replies in talk.finals().values()} == {1}
            await talk.ask("ann", QUESTION)
            assert "4711" in told(talk)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("fault", ["silent", "failing"])
async def test_a_summary_that_fails_is_recent_and_said(fault: str) -> None:
    model = Summing(window=1000)
    setattr(model, fault, True)
    async with talking(model, **small("summary")) as talk:
        await talk.ask("ann", FACT)
        await chatter(talk)
        usages = [one.usage for [one] in talk.finals().values() if one.usage is not None]
        why = {usage.fallback for usage in usages} - {None}
        assert why == {
            "no summary: the model had nothing to say" if fault == "silent" else "no summary: the model failed: no"
        }
        assert all(usage.window == ("summary" if usage.fallback is None else "recent") for usage in usages)
        assert {one.finish for [one] in talk.finals().values()} == {"stop"}
        setattr(model, fault, False)
        await chatter(talk, turns=6)
        assert summary_of(talk) is not None


async def test_a_wish_to_stop_a_message_stops_its_summary_too() -> None:
    async with talking(model := Summing(window=1000), **small("summary")) as talk:
        model.cut = 3
        message = await until_summed_up(talk)
        wish = await talk.ask("ann", "", cancel=message.id)
        assert wish.finish == "cancelled"
        assert talk.final(message.id).finish == "cancelled"
        assert summary_of(talk) is None


async def test_a_client_that_sends_its_history_again_has_one_summary_of_it_until_it_edits_it() -> None:
    async with talking(Summing(window=1000), **small("summary")) as talk:
        said: list[Said] = []
        for n in range(CHATTER):
            text = f"weather number {n} {'x' * 40}"
            reply = await talk.ask("ann", text, history=list(said))
            said += [Said("user", text), Said("assistant", reply.text)]
        made = len(summaries(talk))
        assert 1 < made < CHATTER / 2
        folded = talk.context("ann").dropped  # type: ignore[union-attr]
        said[2 * (folded - 1)] = Said("user", "it was never about the weather")
        await talk.ask("ann", QUESTION, history=said)
        assert len(summaries(talk)) == made + 1, "of an edited history the old summary isn't one"
        assert "it was never about the weather" in talk.model.decode(summaries(talk)[-1].tokens)


async def test_sinks_keep_the_first_tokens_and_ask_the_decoder_to_shift() -> None:
    async with talking(Bare(window=1000), **small("sinks")) as talk:
        await asked_late(talk)
        first, last = talk.model.turns[0], talk.model.turns[-1]
        assert last.tokens[:4] == first.tokens[:4], "whoever said them"
        assert "4711" not in told(talk)
        assert all(turn.shifts for turn in talk.model.turns)
        assert talk.context("ann").dropped > 0  # type: ignore[union-attr]


async def test_a_session_has_its_own_window_from_a_message_or_a_rule_on() -> None:
    async with talking(StandIn(window=1000), **small("recent")) as talk:
        embedding(talk.trial.models, Words())
        await talk.ask("ann", FACT, window="semantic", window_tokens=600)
        await chatter(talk)
        reply = await talk.ask("ann", QUESTION)
        assert reply.usage is not None
        assert reply.usage.window == "semantic"
        assert reply.usage.prompt_tokens <= 600
        other = await talk.ask("ben", "hello")
        assert other.usage is not None
        assert other.usage.window == "recent"
        rule = {"name": "long talks", "when": "session.turns > 3", "window": "sinks", "window_tokens": 400}
        await talk.trial.engine.gate.put("p", RuleSet.model_validate({"rules": [rule]}))
        reply = await talk.ask("ann", QUESTION)
        assert reply.usage is not None
        assert (reply.usage.window, reply.usage.prompt_tokens <= 400) == ("sinks", True)
        context = talk.context("ann")
        assert context is not None
        assert (context.window, context.window_tokens) == ("sinks", 400)


async def test_a_window_too_small_for_a_summary_says_so() -> None:
    async with talking(Summing(window=400), **small("summary", chat_max_tokens=60)) as talk:
        await chatter(talk)
        why = {one.usage.fallback for [one] in talk.finals().values() if one.usage is not None} - {None}
        assert why
        assert all(one is not None and one.endswith("has none for one") for one in why)


async def test_a_session_whose_model_comes_later_is_summed_up_then() -> None:
    async with in_memory([chat], [contexts, answers, reusable], **small("summary")) as trial:
        model = Summing(window=1000)
        live(trial.models, model)
        talk = Talk(trial, model)
        await chatter(talk, turns=5)
        new = Summing("2", window=600)
        live(trial.models, new)
        await talk.ask("ann", "and now?")
        assert new.turns[0] in [turn for turn in new.turns if new.decode(turn.tokens).endswith(INSTRUCTION)]
        assert len(new.turns) == 2
        model.close()
        new.close()
