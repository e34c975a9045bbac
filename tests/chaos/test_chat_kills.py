"""A worker that is killed in the middle of replies: each message gets one, as if nothing had happened."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from core.topics import REPLIES
from tests import babbler, talks
from tests.rig import Rig

SESSIONS = 20
MANY = pytest.param(10, id="10 kills", marks=[pytest.mark.long, pytest.mark.timeout(600)])


@pytest.mark.parametrize("kills", [pytest.param(1, id="1 kill", marks=[pytest.mark.long]), MANY])
async def test_every_message_gets_one_final_reply_as_without_a_crash(rig: Rig, kills: int) -> None:
    await talk_under_kills(rig, kills, workers=1)


@pytest.mark.parametrize("kills", [pytest.param(2, id="2 kills", marks=[pytest.mark.long]), MANY])
async def test_so_it_is_with_two_workers(rig: Rig, kills: int) -> None:
    await talk_under_kills(rig, kills, workers=2)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_without_transactions_replies_are_repeated_with_the_same_text_at_most(rig: Rig) -> None:
    await talk_under_kills(rig, 4, workers=1, repeated=True, guarantee="at_least_once")


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_so_it_is_where_sessions_are_summed_up(rig: Rig) -> None:
    """Each reply says by its text that its context was that of a run without a crash, summary and all."""
    await talk_under_kills(rig, 8, workers=2, chat_window="summary", chat_window_tokens=800)
    replies = [one.json for one in rig.reader(REPLIES.name).records if one.json["final"]]
    assert sum(reply["usage"].get("summary_tokens", 0) > 0 for reply in replies) >= 5
    assert {reply["usage"].get("fallback") for reply in replies} <= {None, "no summary: the model had nothing to say"}


async def talk_under_kills(rig: Rig, kills: int, *, workers: int, repeated: bool = False, **settings: Any) -> None:
    """Each round every session says something; in the middle of their replies a worker is killed."""
    moments = random.Random(kills + workers)
    babbler.publish(rig.store)
    rig.defaults = {"chat_threads": 1, "chat_slots": 8, "chat_exact": True, **settings}
    running = [rig.worker(name).start() for name in "ab"[:workers]]
    rig.control({"active": "1"}, model=babbler.NAME)
    for worker in running:
        worker.wait_ready(60)
    messages = [talks.said(session, turn) for turn in range(kills + 1) for session in range(SESSIONS)]
    for turn in range(kills + 1):
        parts = rig.reader(REPLIES.name).catch_up()
        talks.publish(rig, messages[turn * SESSIONS : (turn + 1) * SESSIONS])
        if turn < kills:
            # Where parts wait for commits they are few and long.
            rig.wait_records(REPLIES.name, parts + moments.randrange(1, SESSIONS if repeated else 150))
            killed = moments.choice(running)
            killed.kill()
            if turn % 2:
                shutil.rmtree(Path(killed.environment["HOMUNCULUS_DATA_DIR"]))
            killed.start().wait_ready(60)
        talks.wait_finals(rig, (turn + 1) * SESSIONS)
    windows = {name: value for name, value in settings.items() if name.startswith("chat_window")}
    expected = await talks.alone(rig.store, messages, chat_exact=True, **windows)
    if not windows:  # else not all turns are held
        talks.assert_contexts(rig, messages, expected)
    rig.terminate()
    talks.assert_told_once(rig, expected, repeated=repeated)
