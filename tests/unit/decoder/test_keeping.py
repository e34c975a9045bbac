"""What becomes of a session's keys and values when others need its slot."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable
from pathlib import Path

import pytest

from core.errors import GenerationError
from models.decoder import BLOCK, BlockFolder
from tests.unit.decoder.conftest import Make, paused, say, words


async def test_a_session_that_had_to_leave_goes_on_as_if_it_had_stayed(make: Make, tmp_path: Path) -> None:
    stays, leaves = make(slots=2), make(slots=1, blocks=BlockFolder(tmp_path, 1 << 30))
    for exact in (True, False):
        name = f"ann {exact}"
        context, expected = words(stays, name, 150), words(stays, name, 150)
        for turn in range(3):
            kept, _ = await say(stays, name, expected, exact=exact)
            await say(leaves, "bob", words(leaves, f"other {turn}", 30))
            got, usage = await say(leaves, name, context, exact=exact)
            assert got == kept
            assert usage.restored == (usage.prompt - len(kept) - 40) // BLOCK * BLOCK if turn else usage.restored == 0
            context = expected = (*context, *got, *words(stays, f"more {turn}", 40))


async def test_what_two_workers_have_of_a_session_is_the_same_blocks(make: Make, tmp_path: Path) -> None:
    here = make(slots=1, blocks=BlockFolder(tmp_path, 1 << 30))
    context = words(here, "moves", 200)
    reply, _ = await say(here, "ann", context)
    assert await here.save("ann") == 192
    here.close()
    here.join()
    there = make(slots=1, blocks=BlockFolder(tmp_path, 1 << 30))
    _, usage = await say(there, "ann", (*context, *reply, *words(there, "again", 10)))
    assert (usage.cached, usage.restored) == (192, 192)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone", "another"])
async def test_a_damaged_block_is_computed_again(
    make: Make, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    blocks = BlockFolder(tmp_path, 1 << 30)
    decoder = make(slots=1, blocks=blocks)
    context = words(decoder, "damage", 260)
    expected, _ = await say(decoder, "ann", context)
    await decoder.save("ann")
    name = list(blocks._files)[1]
    file, _ = blocks._files[name]
    raw = bytearray(file.read_bytes())
    if damage == "flip":
        raw[len(raw) // 2] ^= 16
    file.write_bytes(b"" if damage == "empty" else raw[:-64] if damage == "cut" else raw)
    if damage == "gone":
        file.unlink()
    if damage == "another":
        file.write_bytes(b"nothing that we have written")
    await say(decoder, "bob", words(decoder, "b", 20))
    got, usage = await say(decoder, "ann", context)
    assert (got, usage.restored) == (expected, BLOCK)
    assert any("computed again" in told for told in caplog.messages)
    await decoder.save("ann")
    await say(decoder, "bob", words(decoder, "b", 20))
    assert (await say(decoder, "ann", context))[1].restored == 256, "it was kept anew"


async def test_another_version_never_sees_these_keys_and_values(make: Make, tmp_path: Path) -> None:
    blocks = BlockFolder(tmp_path, 1 << 30)
    old, new = make(slots=1, blocks=blocks), make(slots=1, version="2", blocks=blocks)
    assert old.identity != new.identity
    context = words(old, "swap", 150)
    await say(old, "ann", context)
    await old.save("ann")
    reply, usage = await say(new, "ann", context)
    assert usage.cached == 0
    assert reply == (await say(make(slots=1, version="2"), "ann", context))[0]


async def test_a_common_beginning_is_computed_once(make: Make) -> None:
    decoder = make(slots=4)
    system = words(decoder, "you are helpful", 192)
    contexts = [(*system, *words(decoder, name, 20)) for name in ("one", "two", "three", "four")]
    with paused(decoder):
        turns = [asyncio.ensure_future(say(decoder, f"s{n}", context)) for n, context in enumerate(contexts)]
        await asyncio.sleep(0)
    replies = await asyncio.gather(*turns)
    assert decoder.figures.prefilled_tokens == 192 + 4 * 20
    assert sum(usage.copied for _, usage in replies) == 3 * 192
    alone = make(slots=4)
    for context, (reply, _) in zip(contexts, replies, strict=True):
        assert reply == (await say(alone, "x", context))[0]


async def test_an_edited_history_reuses_what_comes_before_the_edit(make: Make) -> None:
    decoder = make()
    context = words(decoder, "edit", 100)
    await say(decoder, "ann", context)
    edited = (*context[:70], *words(decoder, "other", 30))
    reply, usage = await say(decoder, "ann", edited)
    assert usage.cached == 70
    assert reply == (await say(make(), "ann", edited))[0]


async def test_an_exact_session_never_takes_what_was_rounded(make: Make, tmp_path: Path) -> None:
    decoder = make(slots=2, blocks=BlockFolder(tmp_path, 1 << 30))
    context = words(decoder, "exact", 150)
    await say(decoder, "rounded", context)
    await decoder.save("rounded")
    await decoder.forget("nobody")
    for other in ("b", "c"):
        await say(decoder, other, words(decoder, other, 20))
    _, usage = await say(decoder, "rounded", context)
    assert usage.restored == 128
    _, usage = await say(decoder, "exact", context, exact=True)
    assert usage.cached == 0
    _, usage = await say(decoder, "rounded", context, exact=True)
    assert usage.copied == 148, "of the session that was computed"
    assert usage.restored == 0


async def test_a_forgotten_session_leaves_nothing(make: Make, tmp_path: Path) -> None:
    decoder = make(blocks=BlockFolder(tmp_path, 1 << 30))
    context = words(decoder, "forget", 150)
    await say(decoder, "ann", context)
    await decoder.save("ann")
    assert await decoder.held("ann")
    assert list(tmp_path.glob("*/*"))
    await decoder.forget("ann")
    assert await decoder.held("ann") == ()
    assert not list(tmp_path.glob("*"))
    assert (await say(decoder, "ann", context))[1].cached == 0


async def test_memory_for_tokens_is_bounded_and_idle_sessions_make_room(make: Make) -> None:
    decoder = make(slots=4, tokens=300)
    for name in "abc":
        await say(decoder, name, words(decoder, name, 120))
    assert decoder.figures.held_tokens <= 300
    assert decoder.figures.evicted
    await asyncio.gather(*(say(decoder, name, words(decoder, name, 120)) for name in "abcd"))
    assert max(tick.decoded for tick in decoder.figures.ticks) <= 2


async def test_blocks_that_break_fail_the_turn_and_not_the_decoder(make: Make, tmp_path: Path) -> None:
    class Broken(BlockFolder):
        def has(self, keys: Iterable[bytes]) -> list[bool]:
            raise RuntimeError("broken")

    decoder = make(slots=2, blocks=Broken(tmp_path, 1 << 30))
    with pytest.raises(GenerationError, match="broken"):
        await say(decoder, "ann", words(decoder, "ann", 200))
    reply, _ = await say(decoder, "bob", words(decoder, "bob", 30))
    assert reply == (await say(make(), "bob", words(decoder, "bob", 30)))[0]


def test_a_folder_keeps_to_its_budget_and_drops_the_least_recently_used(tmp_path: Path) -> None:
    folder = BlockFolder(tmp_path, 1000)
    keys = [bytes([number]) * 32 for number in range(6)]
    for key in keys[:4]:
        folder.put(key, memoryview(bytes(250)), "ann")
    assert bytes(folder.get(keys[0], bytearray(300)) or b"") == bytes(250)
    folder.put(keys[4], memoryview(bytes(250)), "bob")
    assert folder.has(keys) == [True, False, True, True, True, False]
    assert folder.size == 1000 == sum(file.stat().st_size for file in tmp_path.glob("*/*"))
    folder.put(keys[5], memoryview(bytes(1001)), "bob")
    assert folder.has(keys[5:]) == [False]
    smaller = BlockFolder(tmp_path, 500)
    assert smaller.has([keys[0], keys[4]]) == [True, True], "the most recently used"
    assert smaller.size == 500


def test_a_full_disk_costs_a_warning_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = BlockFolder(tmp_path, 1000)
    monkeypatch.setattr(Path, "write_bytes", full)
    for number in range(3):
        folder.put(bytes([number]) * 32, memoryview(b"x"), "ann")
    assert (len(folder), folder.size, len(caplog.messages)) == (0, 0, 1)
    assert "No space left" in caplog.text
