"""A message gets one final reply, whatever happens in between."""

from __future__ import annotations

import pytest

from core.topics import MESSAGES, REPLIES
from tests.unit.chat.conftest import talking
from tests.unit.chat.standin import END, StandIn, spelled


async def test_a_reply_comes_in_parts_and_then_whole_with_what_it_took() -> None:
    async with talking() as talk:
        reply = await talk.ask("ann", "hello there")

        *parts, final = talk.replies()
        assert final == reply
        assert [part.seq for part in parts] == list(range(len(parts)))
        assert [part.id for part in parts] == [f"messages/0/0/{seq}" for seq in range(len(parts))]
        assert not any(part.final for part in parts)
        assert "".join(part.text for part in parts) == final.text
        assert (final.id, final.source, final.finish) == (f"messages/0/0/{len(parts)}", "model", "stop")
        assert (final.model, final.version, final.message_id) == ("parrot", "1", "m1")
        assert final.text.startswith("2 said, last 'hello there'")
        assert final.usage is not None
        assert final.usage.completion_tokens == len(final.text) + 1
        assert final.usage.cached_tokens == 0
        told = talk.trial.outputs(REPLIES)
        assert {one.headers["source"] for one in told} == {"messages/0/0"}
        assert {one.key for one in told} == {"ann"}
        assert "early" not in told[0].headers


async def test_the_next_turn_is_asked_with_all_that_was_said_and_computes_its_own_tokens_alone() -> None:
    async with talking() as talk:
        first = await talk.ask("ann", "one")
        second = await talk.ask("ann", "two")

        assert second.text.startswith("4 said, last 'two'")
        assert first.usage is not None
        assert second.usage is not None
        assert second.usage.cached_tokens == first.usage.prompt_tokens + first.usage.completion_tokens
        context = talk.context("ann")
        assert context is not None
        assert [[one.text for one in turn.said] for turn in context.turns] == [
            ["one", first.text],
            ["two", second.text],
        ]


async def test_turns_of_a_session_follow_each_other_while_sessions_run_at_the_same_time() -> None:
    async with talking() as talk:
        talk.model.most = 5
        for text in ("a1", "a2"):
            await talk.say("ann", text)
        await talk.say("ben", "b1")
        await talk.until(lambda: len(talk.replies()) >= 10)
        assert [turn.session for turn in talk.model.turns] == ["ann", "ben"]
        assert talk.finals() == {}
        talk.model.most = 10**9
        talk.model.go.set()
        await talk.trial.settle()
        assert len(talk.finals()) == 3
        assert talk.final("m2").text.startswith("4 said, last 'a2'")


async def test_a_finished_reply_doesnt_wait_for_a_long_one_of_another_session() -> None:
    async with talking() as talk:
        talk.model.most = 5
        await talk.say("ann", "long")
        await talk.until(lambda: len(talk.text("m1")) == 5)
        talk.model.most = 10**9
        await talk.say("ben", "short")
        await talk.until(lambda: "m2" in talk.finals())
        assert "m1" not in talk.finals()
        assert talk.trial.positions()["messages"] == 0, "the long one would be lost by a crash"


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("tokens", [0, 1, 9])
async def test_a_turn_that_a_crash_cuts_goes_on_with_the_tokens_that_were_recorded(guarantee: str, tokens: int) -> None:
    async with talking(guarantee=guarantee) as talk:
        talk.model.most = tokens
        message = await talk.say("ann", "hello")
        await talk.until(lambda: len(talk.text("m1")) == tokens)
        seen = {reply.id: reply.text for reply in talk.replies()}

        talk.model.most = 10**9
        await talk.crash()
        await talk.trial.settle()

        final = talk.final(message.id)
        assert len(talk.model.turns[-1].given) == tokens
        assert final.usage is not None
        assert final.usage.resumed_tokens == tokens
        parts = {reply.id: reply.text for reply in talk.replies() if not reply.final}
        assert seen.items() <= parts.items(), "nobody sees two texts of one part"
        assert "".join(parts.values()) == final.text == spelled(talk.model.turns[0].tokens)
        ids = [reply.id for reply in talk.replies()]
        assert guarantee == "at_least_once" or len(ids) == len(set(ids)), "exactly once is once"


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
async def test_a_final_reply_is_never_made_again(guarantee: str) -> None:
    async with talking(guarantee=guarantee) as talk:
        talk.model.most = 5
        await talk.say("ann", "long")
        await talk.until(lambda: len(talk.text("m1")) == 5)
        talk.model.most = 10**9
        await talk.say("ben", "short")
        await talk.until(lambda: "m2" in talk.finals())
        made = len(talk.model.turns)

        await talk.crash()
        talk.model.go.set()
        await talk.trial.settle()

        assert [turn.session for turn in talk.model.turns[made:]] == ["ann"]
        assert {message: len(finals) for message, finals in talk.finals().items()} == {"m1": 1, "m2": 1}
        context = talk.context("ben")
        assert context is not None
        assert len(context.turns) == 1


async def test_a_message_that_is_sent_again_gets_the_reply_that_it_has_got() -> None:
    async with talking() as talk:
        first = await talk.ask("ann", "hello", id="same")
        await talk.trial.send(MESSAGES, [talk.message("ann", "hello", id="same")])
        await talk.trial.settle()

        finals = talk.finals()["same"]
        assert [reply.text for reply in finals] == 2 * [first.text]
        assert [reply.id.rsplit("/", 1)[0] for reply in finals] == ["messages/0/0", "messages/0/1"]
        assert len(talk.model.turns) == 1
        context = talk.context("ann")
        assert context is not None
        assert len(context.turns) == 1


async def test_what_the_model_sampled_is_kept_as_it_was_sampled() -> None:
    async with talking() as talk:
        reply = await talk.ask("ann", "hello")
        await talk.ask("ann", "more")
        first, second = talk.model.turns
        begun = len(first.tokens)
        assert second.tokens[:begun] == first.tokens
        assert second.tokens[begun : begun + len(reply.text) + 1] == (*talk.model.encode(reply.text), END)


async def test_a_swap_lets_turns_end_on_the_old_version_and_the_next_begin_on_the_new() -> None:
    from tests.unit.chat.standin import live

    async with talking() as talk:
        old = talk.model
        old.most = 3
        await talk.say("ann", "one")
        await talk.until(lambda: len(talk.replies()) == 3)
        version = talk.trial.models.get("parrot")
        assert version is not None

        new = StandIn("2", template="t2")
        live(talk.trial.models, new)
        old.most = 10**9
        old.go.set()
        await talk.trial.settle()
        second = await talk.ask("ann", "two")

        assert talk.final("m1").version == "1"
        assert second.version == "2"
        assert len(old.turns) == len(new.turns) == 1
        assert version.in_flight == 0
        context = talk.context("ann")
        assert context is not None
        assert context.tokenizer == "characters/t2", "the tokens are those of the new version"
        new.close()


async def test_a_reply_of_a_version_that_has_gone_goes_on_with_its_text() -> None:
    from tests.unit.chat.standin import live

    async with talking() as talk:
        talk.model.most = 4
        await talk.say("ann", "one")
        await talk.until(lambda: len(talk.replies()) == 4)
        seen = "".join(reply.text for reply in talk.replies())
        new = StandIn("2")
        live(talk.trial.models, new)
        await talk.crash()
        await talk.trial.settle()
        final = talk.final("m1")
        assert final.version == "2"
        assert final.text.startswith(seen)
        new.close()


async def test_an_erased_session_is_forgotten_and_its_turn_at_work_is_done_anew() -> None:
    from agents.chat import chat
    from agents.deployments import decide
    from core.events import Action
    from core.topics import CONTROL
    from engine.testing import in_memory
    from tables.answers import answers
    from tables.contexts import contexts
    from tables.deployments import deployments
    from tables.reusable import reusable
    from tests.unit.chat.conftest import Talk
    from tests.unit.chat.standin import live

    async with in_memory([chat, decide], [contexts, answers, reusable, deployments]) as trial:
        model = StandIn()
        live(trial.models, model)
        talk = Talk(trial, model)
        await talk.ask("ann", "a secret")
        model.most = 3
        await talk.say("ann", "and now")
        await talk.until(lambda: len(talk.replies("m2")) == 3)
        await trial.send(CONTROL, [Action(action="erase", session="ann")], key="ann")
        model.most = 10**9
        model.go.set()
        await trial.settle()
        assert talk.final("m2").text.startswith("2 said, last 'and now'")
        context = talk.context("ann")
        assert context is not None
        assert [turn.said[0].text for turn in context.turns] == ["and now"]
        assert set(trial.values(answers)) == {"3:ann/m2"}
        model.close()
