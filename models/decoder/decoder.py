"""A language model that answers turns of many sessions at once. Skeleton: signatures are final, bodies follow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from models.decoder.blocks import Blocks
from models.decoder.generation import Generation
from models.decoder.message import Message
from models.decoder.turn import Sampling, Turn
from models.device import Device
from models.folder import ModelFolder
from models.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a decoder may take of the machine."""

    slots: int = 8
    """Sessions whose KV is in memory at once, and that are answered at once."""
    window: int = 2048
    """Tokens of a slot: context and reply together; the model's own context where that is shorter."""
    tokens: int | None = None
    """Tokens of KV in memory, of all slots together; None: slots times window."""
    queue: int = 1024
    """Turns that may wait."""
    threads: int = 1
    """Of one run. Batches of several sessions pay on more."""


class Decoder:
    """One verified version. Make it with Decoder.load. Belongs to one event loop; computes on a thread of its own."""

    manifest: Manifest
    identity: str
    """sha256 of model bytes, tokenizer, template, KV dtype: what its KV and its answers are keyed by."""
    defaults: Sampling
    """The version's own."""
    window: int
    """Tokens of a context and its reply together."""
    end_tokens: frozenset[int]
    tokenizer_sha256: str

    @classmethod
    async def load(
        cls, folder: ModelFolder, device: Device, sizes: Sizes = Sizes(), blocks: Blocks | None = None
    ) -> Self:
        """Loads and verifies (signature, warm-up, golden tokens) in a thread of its own.

        blocks: where idle sessions' KV goes; without it, it is dropped when its slot is needed. Raises ManifestError,
        ProviderMissingError, GoldenMismatchError.
        """
        return await asyncio.to_thread(cls, folder, device, sizes, blocks)

    def __init__(
        self, folder: ModelFolder, device: Device, sizes: Sizes = Sizes(), blocks: Blocks | None = None
    ) -> None:
        raise NotImplementedError

    def render(self, messages: Sequence[Message], *, generate: bool = True) -> tuple[int, ...]:
        """Messages as the version's template writes them, in tokens; a message's text is never more than text.

        generate: with the beginning of the assistant's reply. Quick for short conversations (0.1 ms a message); call
        it in a thread for long ones. Raises TemplateError when the template refuses the messages, or does too much.
        """
        raise NotImplementedError

    def encode(self, text: str) -> tuple[int, ...]:
        """A text's tokens; special tokens written in it are text."""
        raise NotImplementedError

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        raise NotImplementedError

    def submit(self, turn: Turn) -> Generation:
        """Queues a turn. Turns of one session are answered one after the other, in the order of their submission.

        Raises at once: ContextTooLongError where the context leaves no room for a token,
        SamplingError for sampling out of range or a schema that can't be followed, OverloadedError when the queue is
        full, UsageError after close.
        """
        raise NotImplementedError

    def held(self, session: str) -> tuple[int, ...]:
        """The tokens whose KV the session has, in memory or in blocks; of an answer in the making, as of its start."""
        raise NotImplementedError

    async def save(self, session: str) -> int:
        """Puts an idle session's whole blocks of 64 tokens into `blocks` now. Returns the number of tokens that they
        hold. Idle sessions are saved by themselves when nothing else is to be done, or when their slot is needed."""
        raise NotImplementedError

    async def forget(self, session: str) -> None:
        """Drops a session's KV in memory and in blocks; a turn in the making ends as cancelled."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Returns when every accepted turn has ended."""
        raise NotImplementedError

    def close(self) -> None:
        """Cancels what is left, saves nothing more, frees session and memory."""
        raise NotImplementedError
