"""A trial in memory: what its test decides, what it sees, and what it is told when it asks for what can't be."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import DataFolderError, DecodeError, SettingsError, TrialError, UsageError
from core.topics import Direction, TopicSpec
from engine.agent import Agent, Stream
from engine.batch import current_slice
from engine.dead_letters import dead_letter
from engine.publisher import partition_of
from engine.table import Table
from engine.testing import in_memory, memory, on_broker


class Word(msgspec.Struct):
    session: str
    text: str = ""


class Counted(Table[str, int]):
    """session -> number of its words."""

    name = "trial-counted"


WORDS: Final = TopicSpec("words", "session", Word, Direction.IN)
SHOUTS: Final = TopicSpec("shouts", "session", Word, Direction.OUT)
counted = Counted()


async def count(stream: Stream[Word]) -> None:
    async for batch in stream:
        for word in batch:
            if word.text == "bad":
                raise ValueError("a bad word")
            counted[word.session] = number = counted.get(word.session, 0) + 1  # type: ignore[operator]
            current_slice().send(SHOUTS, word.session, Word(word.session, f"{word.text}{number}"))


COUNT: Final = Agent(WORDS, count, (SHOUTS,))

Words = st.lists(st.builds(Word, st.sampled_from("abcde"), st.sampled_from(["x", "y", "bad"])), max_size=20)
Plan = st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["go on", "commit", "crash"])), max_size=6)
"""Sizes of batches, and what follows each."""


@settings(max_examples=15, deadline=None)
@given(words=Words, plan=Plan, partitions=st.integers(1, 3), batch=st.integers(1, 9))
async def test_neither_batches_nor_crashes_change_what_is_committed(
    words: list[Word], plan: list[tuple[int, str]], partitions: int, batch: int
) -> None:
    async with in_memory([COUNT], [counted], batch=batch, partitions=partitions) as trial:
        trial.publish(WORDS, words)
        for size, then in plan:
            await trial.read(WORDS, size)
            if then == "commit":
                await trial.commit()
            elif then == "crash":
                await trial.crash()
        await trial.settle()
        good = [word for word in words if word.text != "bad"]
        counts, told = Counter[str](), list[Word]()
        for word in good:
            counts[word.session] += 1
            told.append(Word(word.session, f"{word.text}{counts[word.session]}"))
        outputs = trial.outputs(SHOUTS)
        for partition in range(partitions):
            here = [word for word in told if partition_of(word.session.encode(), partitions) == partition]
            assert [one.value for one in outputs if one.partition == partition] == here
        assert trial.values(counted) == counts
        assert all(trial.value(counted, session) == counts.get(session) for session in "abcde")
        assert len(trial.dead_letters()) == len(words) - len(good)


async def test_what_is_not_committed_is_not_seen_and_gone_after_a_crash() -> None:
    async with in_memory([COUNT], [counted]) as trial:
        await trial.send(WORDS, [Word("ann", "x")])
        assert (trial.outputs(SHOUTS), trial.value(counted, "ann")) == ([], None)
        await trial.crash()
        assert trial.positions() == {}
        await trial.settle()
        assert [one.value.text for one in trial.outputs(SHOUTS)] == ["x1"]
        assert trial.positions() == {"words": 1}


async def test_an_agent_that_fails_behind_its_records_dead_letter_costs_that_record_alone() -> None:
    async def careless(stream: Stream[Word]) -> None:
        async for batch in stream:
            for s in batch.slices:
                if s.events[0].text == "bad":  # as scoring leaves out what a model can't take
                    s.dropped.append((s.first, dead_letter(s, s.records[0], DecodeError("a bad word"))))
                    s.records = []
                    raise ValueError("and a fault of ours")
                s.send(SHOUTS, s.events[0].session, s.events[0])

    async with in_memory([Agent(WORDS, careless, (SHOUTS,))], []) as trial:
        for text in ("bad", "good"):
            await trial.send(WORDS, [Word("ann", text)])
        await trial.settle()
        assert [one.headers["error"] for one in trial.dead_letters()] == ["DecodeError"]
        assert [one.value.text for one in trial.outputs(SHOUTS)] == ["good"]


async def count_each(stream: Stream[Word]) -> None:
    async def one(word: Word) -> None:
        if word.text == "bad":
            raise ValueError("a bad word")
        counted[word.session] = 1

    await stream.each(one, 10)


@pytest.mark.parametrize("body", [count, count_each])
async def test_neighbours_that_are_bad_for_different_reasons_are_a_dead_letter_each(body: Any) -> None:
    words: list[Word | bytes] = [b"{", Word("ann", "bad"), b"}", Word("ann", "x"), b"["]
    async with in_memory([Agent(WORDS, body, (SHOUTS,))], [counted]) as trial:
        await trial.send(WORDS, words, key="ann")
        await trial.settle()
        assert [one.value[:1] for one in trial.dead_letters() if len(one.value) == 1] == [b"{", b"}", b"["]
        assert len(trial.dead_letters()) == 4
        assert trial.value(counted, "ann") == 1


async def test_a_bad_record_is_a_dead_letter_with_its_bytes_and_the_reason() -> None:
    async with in_memory([COUNT], [counted]) as trial:
        await trial.send(WORDS, [b'{"session": "ann"'], key="ann")
        await trial.send(WORDS, [Word("ben", "bad"), Word("cat", "x")], key="ann")
        await trial.settle()
        assert [(one.value, one.headers["error"]) for one in trial.dead_letters()] == [
            (b'{"session": "ann"', "DecodeError"),
            (b'{"session":"ben","text":"bad"}', "KeyMismatchError"),
            (b'{"session":"cat","text":"x"}', "KeyMismatchError"),
        ]
        assert trial.dead_letters()[0].headers["source"] == "words/0/0"


async def test_headers_travel_and_a_prefix_is_not_seen() -> None:
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    async with in_memory([COUNT], [counted], topic_prefix="mine-") as trial:
        await trial.send(WORDS, [Word("ann")], headers={"traceparent": trace})
        await trial.settle()
        [one] = trial.outputs(SHOUTS)
        assert (one.topic, one.headers["source"]) == ("shouts", "mine-words/0/0")
        assert one.headers["traceparent"][3:35] == "a" * 32


async def test_what_an_agent_writes_is_the_input_of_the_one_that_reads_it() -> None:
    heard: list[str] = []

    async def listen(stream: Stream[Word]) -> None:
        async for batch in stream:
            heard.extend(word.text for word in batch)

    async with in_memory([COUNT, Agent(SHOUTS, listen)], [counted]) as trial:
        await trial.send(WORDS, [Word("ann", "x"), Word("ann", "y")])
        await trial.settle()
        assert heard == ["x1", "y2"]


@pytest.mark.parametrize(("early", "guarantee"), [(True, "exactly_once"), (False, "at_least_once")])
async def test_outputs_that_do_not_wait_are_repeated_by_a_crash_and_the_state_is_exact(
    early: bool, guarantee: str
) -> None:
    async with in_memory([Agent(WORDS, count, (SHOUTS,), early=early)], [counted], guarantee=guarantee) as trial:
        await trial.send(WORDS, [Word("ann", "x")])
        async with asyncio.timeout(10):
            while not trial.outputs(SHOUTS):
                await asyncio.sleep(0.001)
        await trial.crash()
        await trial.settle()
        assert [one.value.text for one in trial.outputs(SHOUTS)] == ["x1", "x1"]
        assert len({one.headers["source"] for one in trial.outputs(SHOUTS)}) == 1
        assert trial.values(counted) == {"ann": 1}


async def test_neither_the_environment_nor_a_file_of_settings_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("HOMUNCULUS_PARTITIONS", "7")
    (tmp_path / ".env").write_text("HOMUNCULUS_MAX_RECORD=nonsense")
    monkeypatch.chdir(tmp_path)
    async with in_memory([COUNT], [counted]) as trial:
        assert len(trial.engine.tasks) == 1


# -- what can't be ----------------------------------------------------------------------------------------------------


def plain() -> None: ...


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: in_memory([plain], []), "'plain' is no agent: declare it"),
        (lambda: in_memory([COUNT, COUNT], []), "read the same topic"),
        (lambda: in_memory([COUNT], [], batch=0), "at least one record"),
        (lambda: in_memory([COUNT], [], alowed_lateness=1), "did you mean allowed_lateness"),
        (lambda: on_broker("embedded", "app", topic_prefix="prod-", app_id="prod"), "app_id, topic_prefix: the trial"),
    ],
)
def test_a_trial_that_cannot_be_is_refused_with_what_to_do(wrong: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        wrong()


def test_a_setting_that_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="partitions"):
        in_memory([COUNT], [], partitions=0)


async def test_events_that_nobody_reads_or_that_have_no_key_are_refused() -> None:
    async with in_memory([COUNT], [counted]) as trial:
        with pytest.raises(UsageError, match=r"no agent of this trial reads shouts \(they read words\)"):
            await trial.send(SHOUTS, [Word("ann")])
        with pytest.raises(UsageError, match=r"keyed by 'session', and bytes have no such text: say it, send\("):
            await trial.send(WORDS, [b"{}"])


async def test_a_table_that_was_forgotten_is_named_in_the_dead_letter() -> None:
    async with in_memory([COUNT], []) as trial:
        await trial.send(WORDS, [Word("ann")])
        await trial.settle()
        [letter] = trial.dead_letters()
        assert "give it to in_memory()" in letter.headers["message"]


async def test_an_agent_that_waits_or_ends_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(stream: Stream[Word]) -> None:
        async for _ in stream:
            await asyncio.Event().wait()

    async def end(stream: Stream[Word]) -> None:
        await anext(stream)

    async def fork(stream: Stream[Word]) -> None:
        async def handle(word: Word) -> None:
            await asyncio.Event().wait()

        await stream.each(handle, concurrency=2)

    monkeypatch.setattr(memory, "PATIENCE_S", 0.2)
    for body, said in ((wait, r"wait has not asked .*deploy\("), (end, "end has returned")):
        async with in_memory([Agent(WORDS, body)], []) as trial:
            with pytest.raises(TrialError, match=said):
                await trial.send(WORDS, [Word("ann")])
    async with in_memory([Agent(WORDS, fork)], []) as trial:
        await trial.send(WORDS, [Word("ann")])
        with pytest.raises(TrialError, match=r"within 0.2 s: words/0/0 is at work\. .*deploy\("):
            await trial.settle(within_s=0.2)


async def test_what_would_end_a_worker_ends_the_test() -> None:
    async def break_down(stream: Stream[Word]) -> None:
        async for _ in stream:
            raise DataFolderError("the disk is full")

    async with in_memory([Agent(WORDS, break_down)], []) as trial:
        with pytest.raises(DataFolderError, match="the disk is full"):
            await trial.send(WORDS, [Word("ann")])
