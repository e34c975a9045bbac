"""A language model that answers turns of many sessions at once."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

import msgspec

from core.errors import AdapterError, ContextTooLongError, ManifestError, OverloadedError, UsageError
from models.decoder.adapter import Adapter
from models.decoder.blocks import Blocks
from models.decoder.figures import Figures
from models.decoder.generation import Generation
from models.decoder.grammar import Grammars
from models.decoder.loop import Loop
from models.decoder.message import Message
from models.decoder.network import Network, Slab
from models.decoder.proving import check_golden, warm_up
from models.decoder.rotation import Rotation
from models.decoder.sampler import check_sampling
from models.decoder.template import ChatTemplate, constants_of
from models.decoder.tokenizer import Tokenizer
from models.decoder.turn import Sampling, Turn
from models.decoder.work import Work
from models.device import Device
from models.folder import ModelFolder
from models.language import TEMPLATE, TOKENIZER

T = TypeVar("T")

KV_FORM: Final = "fp32/1"
"""Type of the values in memory, and the release of how they are laid out and rotated."""


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
    """Turns that may be under way, waiting ones included."""
    threads: int | None = None
    """Of one run; None: one less than there are processors, so that the event loop has its own."""


class Decoder:
    """One verified version. Belongs to one event loop; computes on a thread of its own.

    generation = decoder.submit(Turn(session="ann", tokens=decoder.render(messages), sampling=decoder.defaults))
    async for piece in generation:
        ...
    """

    def __init__(
        self, folder: ModelFolder, device: Device, sizes: Sizes | None = None, blocks: Blocks | None = None
    ) -> None:
        """Loads and verifies (signature, first runs, golden replies), which takes its time: call it off the event loop.

        blocks: where idle sessions' KV goes; without it, it is dropped when its slot is needed. Raises ManifestError,
        ProviderMissingError, GoldenMismatchError.
        """
        sizes = sizes or Sizes()
        network = Network(folder, device, sizes.threads or max(1, (os.cpu_count() or 2) - 1))
        language = network.language
        self.manifest: Final = folder.manifest
        self.identity: Final = hashlib.sha256(f"{folder.sha256}/{KV_FORM}".encode()).hexdigest()
        """Of model bytes, tokenizer, template, KV's form: what its KV and its answers are keyed by."""
        self.sha256: Final = folder.sha256
        """Of the version: adapters name it as their base."""
        self._places = network.places
        self._fitting: set[str] = set()
        """Adapters that have been looked at."""
        self.window: Final = min(sizes.window, language.context)
        """Tokens of a context and its reply together."""
        self.end_tokens: Final = frozenset(language.end_tokens)
        self.defaults: Final = msgspec.convert(language.defaults.model_dump(), Sampling)
        """How the version samples where a turn says nothing."""
        self._begin = (language.begin_token,) if language.begins and language.begin_token is not None else ()
        self._tokenizer = Tokenizer(folder.path / TOKENIZER, self.end_tokens, f"{folder.identity}: {TOKENIZER}")
        self._template = ChatTemplate(
            (folder.path / TEMPLATE).read_text(encoding="utf-8"),
            self._tokenizer,
            constants_of(self._tokenizer, language.begin_token, language.end_tokens[0]),
            f"{folder.identity}: {TEMPLATE}",
        )
        self._rendering = threading.Lock()
        try:
            grammars = Grammars(folder.path / TOKENIZER, language.vocabulary, self.end_tokens)
        except Exception as error:  # llguidance raises ValueError and its own
            raise ManifestError(f"{folder.identity}: {TOKENIZER}: {error}") from error
        slab = Slab(network, sizes.slots, self.window)
        warm_up(slab, folder.identity)
        check_golden(slab, language.golden, folder.identity)
        self.token_bytes: Final = slab.token_bytes
        """Memory of one token's KV."""
        self._most = sizes.queue
        self._numbers = count()
        self._under_way: dict[Generation, Work] = {}
        self._closed = False
        budget = sizes.tokens or sizes.slots * self.window
        rotation = Rotation.learn(slab)
        self._loop = Loop(slab, self._tokenizer, grammars, self.identity, blocks, budget, rotation)
        self._thread = threading.Thread(target=self._loop.run, name=f"decoder {folder.identity}", daemon=True)
        self._thread.start()

    @property
    def tokenizer_sha256(self) -> str:
        """Of tokenizer.json: token ids mean the same under the same alone."""
        return self._tokenizer.sha256

    @property
    def figures(self) -> Figures:
        """Counters since the start, and the state now."""
        return self._loop.figures

    def render(self, messages: Sequence[Message], *, generate: bool = True) -> tuple[int, ...]:
        """Messages as the version's template writes them, in tokens; a message's text is never more than text.

        generate: with the beginning of the assistant's reply. Quick for short conversations (0.1 ms a message); call
        it in a thread for long ones. Raises TemplateError when the template refuses the messages, or does too much.
        """
        with self._rendering:
            tokens = tuple(self._template.render(messages, generate=generate))
        return tokens if tokens[:1] == self._begin else self._begin + tokens

    def encode(self, text: str) -> tuple[int, ...]:
        """A text's tokens; special tokens written in it are text."""
        return tuple(self._tokenizer.encode(text))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        return self._tokenizer.decode(tokens)

    def submit(self, turn: Turn) -> Generation:
        """Queues a turn. Turns of one session are answered one after the other, in the order of their submission.

        Raises at once: ContextTooLongError where the context leaves no room for a token, SamplingError for a setting
        out of range, AdapterError for an adapter of another model, OverloadedError when too much waits, UsageError
        after close and for tokens that there aren't.
        The generation raises SamplingError for a schema that can't be followed.
        """
        if self._closed:
            raise UsageError(f"{self.manifest.identity} is closed; hold it while it answers")
        language = self.manifest.language
        assert language is not None
        check_sampling(turn.sampling)
        if turn.adapter is not None:
            self._check(turn.adapter)
        context = (*turn.tokens, *turn.given)
        if not turn.tokens or min(context) < 0 or max(context) >= language.vocabulary:
            raise UsageError(f"a context has one token or more, from 0 to {language.vocabulary - 1}")
        if len(turn.tokens) >= self.window:
            raise ContextTooLongError(
                f"the context has {len(turn.tokens):,} tokens; with its reply it may have {self.window:,}"
            )
        if len(self._under_way) >= self._most:
            raise OverloadedError(f"{self.manifest.identity} has {self._most:,} turns under way already")
        generation = Generation(turn, self._cancel, self._ended)
        work = Work(generation, next(self._numbers), self.window, self.end_tokens)
        self._under_way[generation] = work
        self._loop.put(partial(self._loop.submit, work))
        return generation

    def _check(self, adapter: Adapter) -> None:
        name = adapter.manifest.identity
        if not self._places:
            raise AdapterError(f"{self.manifest.identity} takes no adapters; convert it with them")
        if adapter.base != self.sha256:
            described = adapter.manifest.adapter
            of = described.model if described else adapter.base
            raise AdapterError(f"adapter {name} was made for {of}, which isn't this {self.manifest.identity}")
        if adapter.identity not in self._fitting:
            adapter.check(self._places)
            self._fitting.add(adapter.identity)

    async def held(self, session: str) -> tuple[int, ...]:
        """The tokens whose KV is in the session's slot."""
        return await self._ask(partial(self._loop.held, session))

    def slot(self, session: str) -> int | None:
        """Where the session's KV is in memory. Read beside the thread that moves it, so for people alone."""
        return self._loop.slot(session)

    async def save(self, session: str) -> int:
        """Keeps a session's whole blocks of 64 tokens now. Returns the number of tokens that they hold.

        Idle sessions are saved by themselves when nothing else is to be done, or when their slot is needed.
        """
        return await self._ask(partial(self._loop.save, session))

    async def forget(self, session: str) -> None:
        """Drops a session's KV in memory and in blocks; its turns end as cancelled."""
        await self._ask(partial(self._loop.forget, session))

    async def drain(self) -> None:
        """Returns when every accepted turn has ended."""
        while self._under_way:
            await next(iter(self._under_way)).ended.wait()

    def close(self) -> None:
        """Ends what is left as cancelled and saves nothing more; session and memory are freed when the thread ends."""
        if not self._closed:
            self._closed = True
            self._loop.put(self._loop.close)

    def join(self, within_s: float = 10.0) -> None:
        """Waits for the thread's end after close(). Raises TimeoutError."""
        self._thread.join(within_s)
        if self._thread.is_alive():
            raise TimeoutError(f"{self._thread.name} still computes after {within_s} s")

    def _cancel(self, generation: Generation) -> None:
        work = self._under_way.get(generation)
        if work is not None:
            self._loop.put(partial(self._loop.cancel, work))

    def _ended(self, generation: Generation) -> None:
        self._under_way.pop(generation, None)

    async def _ask(self, question: Callable[[], T]) -> T:
        """Has the thread answer between two ticks."""
        if self._closed:
            raise UsageError(f"{self.manifest.identity} is closed; hold it while it answers")
        answer: Future[Any] = Future()

        def ask() -> None:
            try:
                answer.set_result(question())
            except Exception as error:
                answer.set_exception(error)

        self._loop.put(ask)
        said: T = await asyncio.wrap_future(answer)
        return said
