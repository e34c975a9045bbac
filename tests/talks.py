"""Conversations of many sessions on a broker, and what they must have come to: the same as each session alone, in
memory, without a crash."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from agents.chat import chat
from core.messages import Generation, Message
from core.topics import MESSAGES, REPLIES
from engine.codec import codec_of
from engine.table import Table
from engine.testing import in_memory
from tables.answers import answers
from tables.contexts import contexts
from tables.reusable import reusable
from tests import babbler
from tests.rig import Rig
from tests.worker import until

TS: Final = 1_764_374_400_000
WORDS: Final = ("where", "is", "the", "red", "house", "of", "my", "uncle", "who", "sings")


def said(session: int, turn: int, tokens: int = 60) -> Message:
    """What a session says in a turn: no two say the same."""
    text = " ".join(WORDS[(session * 7 + turn * 3 + n) % len(WORDS)] for n in range(6 + session % 5))
    return Message(
        id=f"m{session}-{turn}",
        session=f"s{session}",
        ts=TS + 1000 * turn + session,
        text=f"{text} {session} {turn}?",
        options=Generation(max_tokens=tokens),
    )


def publish(rig: Rig, messages: Sequence[Message]) -> None:
    """Returns when the broker has them."""
    encode = codec_of(Message).encode
    for message in messages:
        rig.publisher.send(rig.topic(MESSAGES.name), message.session.encode(), encode(message))
    until(rig.publisher.delivered, 30, what="the messages are there")


def wait_finals(rig: Rig, count: int, within_s: float = 60.0) -> None:
    """Waits until so many messages have a final reply."""
    reader, found, seen = rig.reader(REPLIES.name), set[str](), 0

    def all_there() -> bool:
        nonlocal seen
        reader.catch_up()
        found.update(one.json["message_id"] for one in reader.records[seen:] if one.json["final"])
        seen = len(reader.records)
        return len(found) >= count

    until(all_there, within_s, what=f"{count} messages have a final reply", alive=rig.running())


async def alone(store: Path, messages: Sequence[Message], **settings: Any) -> dict[str, str]:
    """Message -> the text of its reply, of each session by itself."""
    by_session: dict[str, list[Message]] = defaultdict(list)
    for message in messages:
        by_session[message.session].append(message)
    texts = {}
    tables: list[Table[Any, Any]] = [contexts, answers, reusable]
    async with in_memory([chat], tables, model_store=str(store), chat_threads=1, **settings) as trial:
        await trial.deploy(babbler.NAME, "1")
        for turns in by_session.values():
            for message in turns:
                await trial.send(MESSAGES, [message])
                await trial.settle()
        for one in trial.outputs(REPLIES):
            if one.value.final:
                texts[one.value.message_id] = one.value.text
    return texts


def assert_told_once(rig: Rig, expected: dict[str, str], *, repeated: bool = False) -> None:
    """Each message has one final reply, with the expected text; its parts are that text; no id has two texts."""
    texts: dict[str, str] = {}
    parts: dict[str, dict[int, str]] = defaultdict(dict)
    finals: dict[str, list[Any]] = defaultdict(list)
    for record in rig.reader(REPLIES.name).read_out():
        reply = record.json
        known = texts.setdefault(reply["id"], record.value.decode() if record.value else "")
        assert json.loads(known)["text"] == reply["text"], f"{reply['id']} was told with two texts"
        if reply["final"]:
            finals[reply["message_id"]].append(reply)
        else:
            assert repeated or reply["seq"] not in parts[reply["message_id"]], f"{reply['id']} was told twice"
            parts[reply["message_id"]][reply["seq"]] = reply["text"]
    assert finals.keys() == expected.keys()
    for message, replies in finals.items():
        assert len({reply["id"] for reply in replies}) == 1, replies
        assert repeated or len(replies) == 1, replies
        told = parts[message]
        assert "".join(told[seq] for seq in sorted(told)) == replies[0]["text"]
        assert sorted(told) == list(range(replies[0]["seq"]))
        assert (message, replies[0]["text"]) == (message, expected[message]), replies[0]


def assert_contexts(rig: Rig, messages: Sequence[Message], expected: dict[str, str]) -> None:
    """The tables hold all turns, as they were said."""
    for session in {message.session for message in messages}:
        turns = [message for message in messages if message.session == session]
        answer = rig.running()[0].get(f"/tables/contexts/{session}?whole=1")
        held = [[one["text"] for one in turn["said"]] for turn in answer.json()["turns"]]
        # A model may have nothing to say: then nothing was said.
        wanted = [[text for text in (turn.text, expected[turn.id]) if text] for turn in turns]
        assert held == wanted, f"{session}: {held}\nwanted {wanted}"
