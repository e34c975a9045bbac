"""What a client is told of a reply whose passages are deleted, or changed, while it waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from core.errors import KnowledgeAwayError
from core.messages import Citation, Message, Reply
from web.replies import Replies, Told

MESSAGE = Message("m1", "ann", 1, text="what is a table?", tenant="acme")


def final(name: str, *passages: str) -> Told:
    cited = [Citation(1, passage, "guide", 0, 10) for passage in passages]
    reply = Reply(
        id=name,
        message_id=MESSAGE.id,
        session=MESSAGE.session,
        ts=MESSAGE.ts,
        seq=1,
        text=name,
        final=True,
        source="model",
        citations=cited,
    )
    return Told(0, name, reply=reply)


class Library:
    """Of the worker that is asked."""

    def __init__(self, *passages: str) -> None:
        self.passages = set(passages)
        self.away = 0

    async def there(self, tenant: str | None, passages: set[str]) -> set[str]:
        assert tenant == "acme"
        if self.away:
            self.away -= 1
            raise KnowledgeAwayError("it is being read")
        return passages & self.passages


class Followed(Replies):
    """The owner's side is a list: what its table shows, and after how many sendings."""

    def __init__(self, library: Library, *shown: list[Told]) -> None:
        app = SimpleNamespace(engine=SimpleNamespace(knowledge=library))
        super().__init__(cast(Any, app), cast(Any, SimpleNamespace(partition=lambda session: 0)), cast(Any, None))
        self._shown = shown
        self.sent = 0
        self.looks = 0

    async def _once(self, *_: Any) -> AsyncGenerator[Told, None]:
        self.looks += 1
        for told in self._shown[min(self.sent, len(self._shown) - 1)]:
            yield told

    async def _send(self) -> None:
        self.sent += 1

    async def told(self, *, in_parts: bool = False) -> list[str]:
        async with asyncio.timeout(10):
            following = self.follow(cast(Any, None), MESSAGE, self._send, in_parts=in_parts)
            return [told.text async for told in following]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.replies.AGAIN_S", 0.001)
    monkeypatch.setattr("web.replies.SEND_AGAIN_S", 0.002)


async def test_a_reply_that_cites_what_is_there_is_told_and_nothing_is_sent_again() -> None:
    followed = Followed(Library("old"), [final("from old", "old")])
    assert await followed.told() == ["from old"]
    assert followed.sent == 0


async def test_one_that_cites_what_is_gone_is_asked_for_again_and_another_is_told() -> None:
    followed = Followed(Library("new"), [final("from old", "old")], [final("from new", "new")])
    assert await followed.told() == ["from new"]
    assert followed.sent == 1


async def test_it_is_asked_for_until_whoever_answers_has_heard_of_it_too() -> None:
    stale = [final("from old", "old")]
    followed = Followed(Library("new"), stale, stale, stale, [final("from new", "new")])
    assert await followed.told() == ["from new"]
    assert followed.sent == 3


async def test_it_is_not_asked_for_with_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.replies.SEND_AGAIN_S", 3600.0)
    followed = Followed(Library("new"), [final("from old", "old")])
    following = asyncio.create_task(followed.told())
    while followed.looks < 20 and not following.done():
        await asyncio.sleep(0.001)
    following.cancel()
    assert followed.sent == 1


async def test_while_nobody_can_say_what_is_there_nothing_is_told_and_nothing_is_sent() -> None:
    library = Library("old")
    library.away = 3
    followed = Followed(library, [final("from old", "old")])
    assert await followed.told() == ["from old"]
    assert (followed.sent, followed.looks) == (0, 4)


@pytest.mark.parametrize("in_parts", [True, False])
async def test_a_stream_that_has_begun_is_told_to_its_end_and_a_whole_reply_is_another(in_parts: bool) -> None:
    begun = [Told(0, "from "), final("from old", "old")]
    followed = Followed(Library("new"), begun, [final("from new", "new")])
    assert await followed.told(in_parts=in_parts) == ["from ", "from old" if in_parts else "from new"]
    assert followed.sent == (0 if in_parts else 1)


async def test_a_stream_that_has_not_begun_gets_another_reply() -> None:
    followed = Followed(Library("new"), [final("from old", "old")], [final("from new", "new")])
    assert await followed.told(in_parts=True) == ["from new"]
