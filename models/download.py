"""Copies one file of a remote store: goes on where it broke off, tries again with a bound, proves it by sha256."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final

import aiohttp
from fsspec.asyn import AsyncFileSystem, sync
from fsspec.implementations.http import HTTPFileSystem

from core.errors import StoreAwayError, TamperedError
from models.folder import sha256

log = logging.getLogger(__name__)

PAUSES: Final = [0.2, 0.5, 1.0, 2.0, 5.0]
"""Seconds before each new attempt. Whoever got further than ever before begins with the first one again, so a large
file comes over a bad line, and a store that is gone is given up after nine seconds."""
PIECE: Final = 8 << 20
"""Bytes of one request, where a file system has requests and no streams."""
TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=30)

Told = Callable[[int], None]
"""Called with the bytes of the file that are here."""


def download(fs: Any, path: str, part: Path, expected: str, told: Told) -> None:
    """Completes `part`, which may hold the file's beginning from an earlier attempt.

    fs: an fsspec file system; expected: the file's sha256. Raises FileNotFoundError and PermissionError as the store
    does, StoreAwayError when it breaks off again and again (what came is kept), TamperedError when what came is
    something else.
    """
    resumed = part.exists() and part.stat().st_size > 0
    _complete(fs, path, part, told)
    if sha256(part) != expected and resumed:  # of another life of the file, or damaged while it lay here
        part.write_bytes(b"")
        _complete(fs, path, part, told)
    if (got := sha256(part)) != expected:
        size = part.stat().st_size
        part.write_bytes(b"")
        raise TamperedError(f"sha256 {got} ({size:,} bytes), but the manifest says {expected}")


def small(fs: Any, path: str, most: int, within_s: float) -> bytes | None:
    """A whole file; None where it has more than so many bytes, of which no more are read.

    within_s: how long an answer may take. Raises what the store does.
    """
    if isinstance(fs, HTTPFileSystem):
        whole: bytes = sync(fs.loop, _small, fs, path, most, within_s)
    else:
        limit = patience(fs, within_s)
        if fs.info(path, **limit)["size"] > most:
            return None
        whole = bytes(fs.cat_file(path, **limit))
    return whole if len(whole) <= most else None


def patience(fs: Any, within_s: float) -> dict[str, float]:
    """What tells a question to a file system how long its answer may take, where it can be told."""
    return {"timeout": within_s} if isinstance(fs, AsyncFileSystem) else {}


async def _small(fs: Any, url: str, most: int, within_s: float) -> bytes:
    session = await fs.set_session()
    limit = aiohttp.ClientTimeout(total=within_s)
    whole = bytearray()
    async with session.get(fs.encode_url(url), **{**fs.kwargs, "timeout": limit}) as answer:
        if answer.status == 404:
            raise FileNotFoundError(url)
        answer.raise_for_status()
        async for chunk in answer.content.iter_any():
            whole += chunk
            if len(whole) > most:
                break
    return bytes(whole)


def _complete(fs: Any, path: str, part: Path, told: Told) -> None:
    read = _stream if isinstance(fs, HTTPFileSystem) else _pieces
    furthest, failures = -1, 0
    with part.open("r+b" if part.exists() else "w+b") as file:
        while True:
            try:
                return read(fs, path, file, told)
            except (FileNotFoundError, PermissionError):
                raise
            except Exception as error:
                file.flush()
                here = file.seek(0, 2)
                failures = 1 if here > furthest else failures + 1
                furthest = max(furthest, here)
                if failures > len(PAUSES):
                    raise StoreAwayError(
                        f"{error!r}, {failures} times in a row; the {here:,} bytes that came are kept for the next "
                        "attempt"
                    ) from error
                log.warning("%s broke off after %d bytes and is gone on with: %r", path, here, error)
                time.sleep(PAUSES[failures - 1])


def _pieces(fs: Any, path: str, file: BinaryIO, told: Told) -> None:
    size, here = fs.info(path)["size"], file.seek(0, 2)
    if here > size:
        here = file.truncate(0)
    told(here)
    file.seek(here)
    while here < size:
        piece = fs.cat_file(path, start=here, end=min(here + PIECE, size))
        if not piece:
            raise EOFError(f"nothing came after {here} of {size} bytes")
        file.write(piece)
        here += len(piece)
        told(here)


def _stream(fs: Any, url: str, file: BinaryIO, told: Told) -> None:
    sync(fs.loop, _streamed, fs, url, file, told)


async def _streamed(fs: Any, url: str, file: BinaryIO, told: Told) -> None:
    """One request for the rest of the file. Servers that know no ranges send all of it, and it begins anew."""
    session = await fs.set_session()
    here = file.seek(0, 2)
    # Packed content would have other bytes, and other ranges.
    headers = {**fs.kwargs.get("headers", {}), "Accept-Encoding": "identity", "Range": f"bytes={here}-"}
    async with session.get(fs.encode_url(url), **{**fs.kwargs, "headers": headers, "timeout": TIMEOUT}) as answer:
        if answer.status in (404, 410):
            raise FileNotFoundError(url)
        if answer.status in (401, 403):
            raise PermissionError(f"{answer.url}: {answer.status} {answer.reason}")
        if answer.status == 416:  # nothing lies behind what is here: whole, or not of this file, as its hash will tell
            return
        answer.raise_for_status()
        if answer.status != 206:
            here = file.truncate(0)
        elif (begin := _begin(answer.headers.get("Content-Range", ""))) != here:
            raise OSError(f"asked for bytes from {here} on, got them from {begin} on")
        file.seek(here)
        told(here)
        async for chunk in answer.content.iter_any():
            file.write(chunk)
            here += len(chunk)
            told(here)


def _begin(content_range: str) -> int | None:
    match = re.match(r"bytes (\d+)-", content_range)
    return int(match[1]) if match else None
