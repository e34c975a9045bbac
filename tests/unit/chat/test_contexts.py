"""What a session's next prompt is made of: whole turns, for as long as the session lives."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from core.messages import Said
from models.windows.fixed import fixed
from models.windows.recent import recent
from tables.answers import answers
from tables.contexts import Turn, Utterance, contexts, packed, unpacked
from tests.unit.chat.conftest import TS, talking
from tests.unit.chat.standin import StandIn, live

counted = st.lists(st.tuples(st.integers(1, 400), st.booleans()), max_size=30)


def turns(*counts: int | tuple[int, bool]) -> list[Turn]:
    made = []
    for n, one in enumerate(counts):
        count, pinned = one if isinstance(one, tuple) else (one, False)
        made.append(Turn(f"m{n}", n, [Utterance("user", "x", packed(range(count)))], pinned))
    return made


def names(kept: list[Turn]) -> list[str]:
    return [turn.message for turn in kept]


def test_recent_keeps_all_while_it_fits_and_then_drops_the_oldest_some_at_a_time() -> None:
    assert names(recent(turns(100, 100, 100, 100), 400)) == ["m0", "m1", "m2", "m3"]
    assert names(recent(turns(100, 100, 100, 100, 100), 400)) == ["m2", "m3", "m4"]
    assert names(recent(turns((100, True), 100, 100, 100, 100), 400)) == ["m0", "m3", "m4"]
    assert names(recent(turns(500), 400)) == []


def test_fixed_goes_back_from_the_newest_and_stops_at_the_first_that_does_not_fit() -> None:
    assert names(fixed(turns(10, 300, 100, 100), 300)) == ["m2", "m3"], "the small one behind the large one stays out"
    assert names(fixed(turns((50, True), 10, 300, 100, 100), 300)) == ["m0", "m3", "m4"]
    assert names(fixed(turns(100, 100), 200)) == ["m0", "m1"]


@given(counted, st.integers(0, 2000))
def test_windows_keep_order_pinned_turns_and_the_newest_and_never_more_than_fits(
    counts: list[tuple[int, bool]], room: int
) -> None:
    given_turns = turns(*counts)
    pinned = [turn for turn in given_turns if turn.pinned]
    free = [turn for turn in given_turns if not turn.pinned]
    for window in (recent, fixed):
        kept = window(given_turns, room)
        assert [turn for turn in kept if turn.pinned] == pinned
        left = [turn for turn in kept if not turn.pinned]
        assert left == free[len(free) - len(left) :], "whole turns, the oldest are dropped"
        assert sum(turn.count for turn in kept) <= max(room, sum(turn.count for turn in pinned))


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_tokens_come_back_as_they_were(tokens: list[int]) -> None:
    assert unpacked(packed(tokens)) == tokens


async def test_a_window_is_filled_and_moves_on_in_whole_turns() -> None:
    async with talking(StandIn(window=1000), chat_max_tokens=100) as talk:
        for n in range(18):
            reply = await talk.ask("ann", f"question {n} {'x' * 40}")
            assert reply.finish == "stop"
        context = talk.context("ann")
        assert context is not None
        assert 0 < context.dropped < 18
        assert context.turns[-1].message == "m18"
        assert all(len(turn.said) == 2 for turn in context.turns)
        usages = [talk.final(f"m{n}").usage for n in range(1, 19)]
        cold = [n for n, usage in enumerate(usages) if usage is not None and usage.cached_tokens < 100]
        assert len(cold) < 7, f"most turns compute their own tokens alone: {cold}"


async def test_what_is_pinned_and_system_messages_stay_when_the_window_moves_on() -> None:
    async with talking(StandIn(window=1000), chat_max_tokens=100) as talk:
        await talk.ask("ann", "you are a pirate", role="system")
        await talk.ask("ann", "my name is Ann", pinned=True)
        for n in range(18):
            await talk.ask("ann", f"question {n} {'x' * 40}")
        context = talk.context("ann")
        assert context is not None
        assert context.dropped > 0
        assert [turn.said[0].text for turn in context.turns[:2]] == ["you are a pirate", "my name is Ann"]


async def test_a_fixed_window_has_a_thousand_and_some_tokens_by_default() -> None:
    async with talking(chat_window="fixed") as talk:
        for n in range(18):
            await talk.ask("ann", f"question {n} {'x' * 40}")
        context = talk.context("ann")
        assert context is not None
        assert 700 < context.count <= 1024 + 100


async def test_a_session_that_was_silent_for_longer_than_its_time_to_live_begins_anew() -> None:
    async with talking(ctx_ttl=60, allowed_lateness=0) as talk:
        await talk.ask("ann", "hello")
        await talk.ask("ann", "still there", ts=TS + 60_000)
        assert len(talk.context("ann").turns) == 2  # type: ignore[union-attr]
        await talk.ask("ann", "a minute and more later", ts=TS + 121_001)
        assert len(talk.context("ann").turns) == 1  # type: ignore[union-attr]
        await talk.ask("ben", "later", ts=TS + 200_000)
        await talk.trial.settle()
        assert set(talk.trial.values(contexts)) == {"ben"}, "forgotten, not only passed over"


async def test_a_message_says_how_long_its_session_lives_from_then_on() -> None:
    async with talking(ctx_ttl=60, allowed_lateness=0) as talk:
        await talk.ask("ann", "remember this", ctx_ttl=3600, ts=TS)
        reply = await talk.ask("ann", "half an hour later", ts=TS + 1_800_000)
        assert reply.text.startswith("4 said")
        reply = await talk.ask("ann", "and again", ts=TS + 3_600_000)
        assert reply.text.startswith("6 said")


async def test_answers_are_forgotten_after_an_hour_but_not_before_their_message_is_past_recall() -> None:
    async with talking(allowed_lateness=0) as talk:
        talk.model.most = 3
        await talk.say("ann", "long")
        await talk.until(lambda: len(talk.text("m1")) == 3)
        talk.model.most = 10**9
        await talk.say("ben", "short")
        await talk.until(lambda: "m2" in talk.finals())
        await talk.say("cat", "much later", ts=TS + 7_200_000)
        await talk.until(lambda: "m3" in talk.finals())
        await talk.crash()
        talk.model.go.set()
        await talk.trial.settle()
        assert {message: len(finals) for message, finals in talk.finals().items()} == {"m1": 1, "m2": 1, "m3": 1}
        await talk.ask("dan", "and later still", ts=TS + 14_400_000)
        await talk.trial.settle()
        assert set(talk.trial.values(answers)) == {"3:dan/m4"}


async def test_another_template_makes_the_tokens_of_what_was_said_anew() -> None:
    async with talking() as talk:
        await talk.ask("ann", "one")
        new = StandIn("2", template="another")
        live(talk.trial.models, new)
        reply = await talk.ask("ann", "two")
        assert reply.text.startswith("4 said")
        assert talk.context("ann").tokenizer == "characters/another"  # type: ignore[union-attr]
        new.close()


def history(*said: str) -> list[Said]:
    return [Said("assistant" if n % 2 else "user", text) for n, text in enumerate(said)]


async def cached_of(talk: Any, session: str, text: str, **more: Any) -> tuple[int, int]:
    reply = await talk.ask(session, text, **more)
    return reply.usage.cached_tokens, reply.usage.prompt_tokens


async def test_a_history_that_extends_edits_or_forks_what_the_session_holds_becomes_the_context() -> None:
    async with talking() as talk:
        first = await talk.ask("ann", "one")
        held = first.usage.prompt_tokens + first.usage.completion_tokens  # type: ignore[union-attr]

        cached, _ = await cached_of(talk, "ann", "two", history=history("one", first.text))
        assert cached == held, "extends: all that was computed is used"
        second = talk.final("m2")

        cached, _ = await cached_of(talk, "ann", "two, differently", history=history("one", first.text))
        assert cached > held, "forks behind the first turn: as far as the same tokens go"
        assert [turn.said[0].text for turn in talk.context("ann").turns] == ["one", "two, differently"]  # type: ignore[union-attr]

        cached, _ = await cached_of(talk, "ann", "three", history=history("ONE", first.text, "two", second.text))
        assert cached < held, "edits the beginning: what follows is computed anew"
        assert [turn.said[0].text for turn in talk.context("ann").turns] == ["ONE", "two", "three"]  # type: ignore[union-attr]

        await cached_of(talk, "ann", "a new talk", history=[])
        assert [turn.said[0].text for turn in talk.context("ann").turns] == ["a new talk"]  # type: ignore[union-attr]


async def test_a_client_that_always_sends_all_reuses_as_much_as_one_that_sends_nothing_twice() -> None:
    async with talking(StandIn(window=1000), chat_max_tokens=100) as talk:
        said: list[str] = []
        for n in range(12):
            text = f"question {n} {'x' * 40}"
            await talk.ask("brief", text)
            whole = await talk.ask("whole", text, history=history(*said))
            said += [text, whole.text]
        usages = {
            session: [reply.usage for [reply] in talk.finals().values() if reply.session == session]
            for session in ("brief", "whole")
        }
        cached = {name: [usage.cached_tokens for usage in found if usage is not None] for name, found in usages.items()}
        assert sum(cached["whole"]) > 0.95 * sum(cached["brief"]), cached


async def test_views_show_a_context_for_people() -> None:
    async with talking() as talk:
        await talk.ask("ann", "hello")
        shard = talk.trial.engine.tasks[0].shard("contexts")
        shown = contexts.describe(shard, shard.finished(b"ann"))
        assert shown["turns"][0]["said"][0] == {"role": "user", "text": "hello", "tokens": 8}
        shard = talk.trial.engine.tasks[0].shard("answers")
        shown = answers.describe(shard, shard.finished(b"3:ann/m1"))
        assert shown["source"] == "messages/0/0"
        assert "tokens" in shown


def test_a_key_of_answers_tells_its_session_whatever_is_in_it() -> None:
    for session, message in (("a/b", "c"), ("3:x/", "/"), ("ä ö", "1:2/3")):
        assert answers.session(answers.place(session, message)) == session
