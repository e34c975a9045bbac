"""Answers that similar questions get where a user allows for errors: learnt first, and never across what divides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from agents.grounding import UNKNOWN
from core.messages import Reply
from core.settings import Settings
from models.knowledge.boundary import OBSERVED
from models.knowledge.knowledge import Asked, Knowledge
from tables.answers import answers
from tables.similar import ANSWERS, COMPARISONS, Kept, similar
from tests.unit.chat.conftest import Talk
from tests.unit.chat.standin import StandIn, spelled
from tests.unit.chat.test_knowledge import CATS, DOGS, Reader, reading

ASKED = 30
"""Questions that are similar, each of a session of its own."""
SIZE = 24
"""As the toy embedder has it."""


class Sure(StandIn):
    """Says the same of all cats, and something else of anything else."""

    def says(self, tokens: Sequence[int]) -> str:
        text = self.decode(tokens)
        return "They sleep." if "cat" in text else spelled(tokens)


@pytest.fixture(autouse=True)
def likened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions that differ by a number alone are similar (cosine .995 or more), others are not."""

    async def asked(self: Knowledge, text: str) -> Asked:
        number = re.search(r"\d+", text)
        angle = int(number[0]) / 400 if number else 0.0
        vector = np.zeros(SIZE, np.float32)
        vector[:2] = np.cos(angle), np.sin(angle)
        return Asked(np.roll(vector, 2 * len(re.findall("dog", text))), self.embedder)

    monkeypatch.setattr(Knowledge, "asked", asked)


def question(number: int, what: str = "cat") -> str:
    return f"the {what} sleeps at night, {number}?"


async def ask_all(r: Reader, what: str = "cat", first: str = "s", **more: object) -> list[Reply]:
    return [await r.ask(question(n, what), f"{first}{n}", **more) for n in range(ASKED)]


async def test_nobody_gets_a_similar_questions_answer_unless_a_user_allows_for_errors(tmp_path: Path) -> None:
    assert Settings.model_fields["chat_similar_error"].default == 0
    async with reading(tmp_path, Sure(), chat_knowledge=False) as r:
        assert {reply.source for reply in await ask_all(r)} == {"model"}
        assert r.talk.trial.values(similar) == {}


async def test_real_answers_are_compared_first_and_then_given_again_naming_their_message(tmp_path: Path) -> None:
    async with reading(tmp_path, Sure(), chat_knowledge=False, chat_similar_error=0.3) as r:
        replies = await ask_all(r)
        again = [reply for reply in replies if reply.source == "cache"]
        assert {reply.source for reply in replies[: OBSERVED + 1]} == {"model"}, "shadow"
        assert len(again) > ASKED / 4
        origin = r.talk.trial.value(answers, answers.place("s0", replies[0].message_id))
        assert origin is not None
        assert {(reply.text, reply.similar_to) for reply in again} == {("They sleep.", origin.source)}
        counts = r.talk.trial.engine.knowledge.likenesses
        assert counts["hit"] == len(again)
        assert counts["compared"] == counts["right"] == ASKED - 1 - len(again)
        assert (0 < counts["would_hit"] <= counts["compared"], counts["wrong"]) == (True, 0)
        [(_, scope)] = r.talk.trial.values(similar).items()
        assert [len(one.observed) for one in scope.kept] == [counts["compared"]], "one answer stands for all"
        context = r.talk.context(again[-1].session)
        assert context is not None
        assert [one.text for one in context.turns[0].said][1] == "They sleep."


async def test_answers_that_differ_are_never_given_to_another_question(tmp_path: Path) -> None:
    async with reading(tmp_path, Sure(), chat_knowledge=False, chat_similar_error=0.3) as r:
        assert {reply.source for reply in await ask_all(r, "dog")} == {"model"}
        counts = r.talk.trial.engine.knowledge.likenesses
        assert (counts["compared"], counts["right"], counts["hit"]) == (ASKED - 1, 0, 0)
        assert counts["wrong"] == counts["would_hit"] <= 0.3 * ASKED + 3 * (0.21 * ASKED) ** 0.5
        [(_, scope)] = r.talk.trial.values(similar).items()
        assert len(scope.kept) == ANSWERS, "and what is known of them is bounded"


@pytest.mark.parametrize("more", [" " + "and so on " * 50, "\n  if cat:", "  a table"])
async def test_a_long_text_or_one_whose_layout_counts_is_similar_to_none(tmp_path: Path, more: str) -> None:
    async with reading(tmp_path, Sure(), chat_knowledge=False, chat_similar_error=0.3) as r:
        assert {(await r.ask(question(n) + more, f"s{n}")).source for n in range(ASKED // 2)} == {"model"}
        assert r.talk.trial.values(similar) == {}


@pytest.mark.parametrize("more", [{"tenant": "other"}, {"role": "tool"}, {"tags": ("pets",), "knowledge": True}])
async def test_another_tenant_or_context_learns_for_itself(tmp_path: Path, more: dict[str, object]) -> None:
    async with reading(tmp_path, Sure(), chat_knowledge=False, chat_similar_error=0.3) as r:
        await ask_all(r, tenant="acme")
        counts = r.talk.trial.engine.knowledge.likenesses
        before = dict(counts)
        reply = await r.ask(question(ASKED), "t", **more)
        assert (reply.source, dict(counts)) != ("cache", before)
        assert dict(counts) == before, "there was nothing to compare it with"


async def test_what_is_published_or_deleted_ends_it(tmp_path: Path) -> None:
    async with reading(tmp_path, Sure(), chat_similar_error=0.3, chat_relevance=-1) as r:
        await r.know("cats", CATS)
        replies = await ask_all(r)
        cached = [reply for reply in replies if reply.source == "cache"]
        assert cached
        assert {one.document for reply in cached for one in reply.citations} == {"cats"}
        counts = r.talk.trial.engine.knowledge.likenesses
        before = dict(counts)
        await r.know("dogs", DOGS)
        assert (await r.ask(question(ASKED), "t")).source == "model"
        assert dict(counts) == before
        await r.forget("dogs")
        await r.forget("cats")
        gone = [await r.ask(question(n), f"u{n}") for n in range(12)]
        assert {(reply.text, len(reply.citations)) for reply in gone} == {(UNKNOWN, 0)}


async def test_a_crash_changes_no_decision_and_counts_nothing_twice(tmp_path: Path) -> None:
    async def told(folder: Path, every: int) -> list[tuple[str, str, str | None]]:
        async with reading(folder, Sure(), chat_knowledge=False, chat_similar_error=0.3, partitions=1) as r:
            talk, found = r.talk, list[tuple[str, str, str | None]]()
            for n in range(ASKED):
                before = decided(talk)
                message = await talk.say(f"s{n}", question(n))
                if n % every == every - 1:  # what was decided and isn't committed is decided once more
                    await talk.until(lambda before=before: decided(talk) > before, commits=False)  # type: ignore[misc]
                    await talk.crash()
                await talk.trial.settle()
                reply = talk.final(message.id)
                found.append((reply.text, reply.source, reply.similar_to))
            [(_, scope)] = talk.trial.values(similar).items()
            compared = sum(source == "model" for _, source, _ in found) - 1
            assert [len(one.observed) for one in scope.kept] == [compared]
            return found

    def decided(talk: Talk) -> int:
        counts = talk.trial.engine.knowledge.likenesses
        return counts["hit"] + counts["compared"]

    calm = await told(tmp_path / "calm", ASKED + 1)
    assert {source for _, source, _ in calm} == {"model", "cache"}
    assert await told(tmp_path / "crashing", 6) == calm


def test_a_message_that_comes_again_is_compared_once_and_the_newest_are_kept() -> None:
    one = Kept("place", "messages/0/0", b"", 0)
    for source in (*range(COMPARISONS + 5), *range(COMPARISONS, COMPARISONS + 5)):
        one.compare(f"messages/0/{source}", 0.9 if source < COMPARISONS else 0.95, right=source % 2 == 0)
    assert len(one.observed) == COMPARISONS
    assert [round(similarity, 2) for similarity, _ in one.observed[-6:]] == [0.9, *[0.95] * 5]


async def test_of_an_erased_session_no_question_is_kept(tmp_path: Path) -> None:
    async with reading(tmp_path, Sure(), chat_knowledge=False, chat_similar_error=0.3, partitions=1) as r:
        await r.ask(question(1), "ann")
        await r.ask(question(2, "dog"), "bob")
        shard = r.talk.trial.engine.tasks[0].shard(similar.name)
        [key] = similar.keys_of("ann", shard)
        assert similar.decode_key(key) in r.talk.trial.values(similar)
        assert similar.keys_of("cleo", shard) == []
