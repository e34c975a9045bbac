"""The language models that are live on this worker, as chat asks them."""

from __future__ import annotations

import asyncio
import hashlib
import time
from contextlib import suppress
from typing import Any, Self

import msgspec

from agents.prompts import Chosen, Draft, Material, Prompt, Prompts
from core.errors import AdapterError, NoModelError, TaskError, UnknownModelError
from core.messages import Generation, Message
from core.settings import Settings
from engine.batch import Slice
from engine.engine import Engine
from models.decoder.adapter import Adapter
from models.decoder.decoder import Decoder
from models.decoder.turn import Sampling
from models.version import LiveVersion
from tables.answers import Answer
from tables.contexts import Context, unpacked

LOOK_S = 1.0
"""Seconds between looks at whether a message that waits for a model still is ours."""
LONG = 4_000
"""Characters that are made tokens beside the event loop, not on it."""


class Speaker:
    """A version that is held while it answers: it isn't freed before the block ends, whatever is deployed meanwhile."""

    def __init__(
        self, version: LiveVersion, prompts: Prompts, settings: Settings, adapter: LiveVersion | None = None
    ) -> None:
        """adapter: what changes it; held as well."""
        self.decoder = prompts.decoder
        self.model = (version.manifest.name, version.version)
        """Name and version."""
        self.prompts = prompts
        self._version = version
        self._most = settings.chat_max_tokens
        self._adapter = adapter
        for held in self._held:
            held.hold()

    @property
    def adapter(self) -> Adapter | None:
        """What changes the version."""
        engine = None if self._adapter is None else self._adapter.engine
        assert engine is None or isinstance(engine, Adapter)
        return engine

    @property
    def identity(self) -> str:
        """Of all that its replies depend on."""
        return self.decoder.identity if self.adapter is None else f"{self.decoder.identity}/{self.adapter.identity}"

    @property
    def _held(self) -> list[LiveVersion]:
        return [self._version] if self._adapter is None else [self._version, self._adapter]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for held in self._held:
            held.release()

    def sampling(self, message: Message, source: str) -> Sampling:
        """What the message asks for, where it doesn't the version's own. Raises SamplingError with submit() alone."""
        wanted = msgspec.structs.asdict(message.options or Generation())
        given: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
        given["max_tokens"] = min(given.get("max_tokens", self._most), self._most)
        given["stop"] = tuple(given.get("stop", self.decoder.defaults.stop))
        given.setdefault("seed", int.from_bytes(hashlib.sha256(source.encode()).digest()[:7]))
        return msgspec.structs.replace(self.decoder.defaults, **given)

    async def draft(self, message: Message, found: Context | None, reserve: int, material: Material) -> Draft:
        """As Prompts.draft."""
        size = len(message.text) + sum(len(said.text) for said in message.history or ())
        if size > LONG:
            return await asyncio.to_thread(self.prompts.draft, message, found, reserve, material)
        return self.prompts.draft(message, found, reserve, material)

    async def prompt(self, draft: Draft, chosen: Chosen) -> Prompt:
        """As Prompts.prompt."""
        if not self.prompts.wording.by_message:  # the template writes the whole conversation
            return await asyncio.to_thread(self.prompts.prompt, draft, chosen)
        return self.prompts.prompt(draft, chosen)

    def given(self, answer: Answer) -> tuple[int, ...]:
        """The reply as far as it is recorded, in tokens of this version."""
        if answer.identity in {self.decoder.identity, ""}:
            return tuple(unpacked(answer.tokens))
        return self.decoder.encode(answer.text) if answer.text else ()


class Speakers:
    """Finds who answers."""

    def __init__(self, engine: Engine) -> None:
        self._models = engine.models
        self._settings = engine.settings
        self._prompts: dict[str, Prompts] = {}
        """Identity -> how that version is asked: to learn it takes some milliseconds."""
        self._news = asyncio.Event()
        engine.models.watch(lambda model: self._news.set())

    async def wait(self, name: str | None, s: Slice[Any], until: float, adapter: str | None = None) -> Speaker:
        """The one that is meant by a name, or by none. until: monotonic. adapter: name of what is to change it. Raises
        UnknownModelError, AdapterError, NoModelError where none is live by then, and TaskError where the message is no
        longer ours."""
        while True:
            self._news.clear()
            try:
                return self._speaker(name, adapter)
            except NoModelError:
                left = until - time.monotonic()
                if left <= 0 or self._settings.without_model == "dead-letter":
                    raise
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), min(LOOK_S, left))
            if s.stale:
                raise TaskError(f"partition {s.partition} has moved on")

    def now(self, name: str | None, adapter: str | None) -> Speaker | None:
        """As wait(), of those that are live at the moment."""
        try:
            return self._speaker(name, adapter)
        except (AdapterError, NoModelError, UnknownModelError):
            return None

    def _speaker(self, name: str | None, adapter: str | None) -> Speaker:
        wanted = name or self._settings.default_chat_model or self._only()
        version = self._models.get(wanted)
        if version is None and wanted in self._models.deployed():
            raise NoModelError(f"{wanted} is deployed, but not live on this worker yet")
        if version is None and wanted == self._settings.default_chat_model:
            raise NoModelError(f"{wanted}, which HOMUNCULUS_DEFAULT_CHAT_MODEL names, isn't deployed yet")
        if version is None or not isinstance(version.engine, Decoder):
            raise UnknownModelError(wanted, self.names())
        changed = None if adapter is None else self._models.adapter(adapter)
        return Speaker(version, self._prompts_of(version.engine), self._settings, changed)

    def _prompts_of(self, decoder: Decoder) -> Prompts:
        prompts = self._prompts.get(decoder.identity)
        if prompts is None or prompts.decoder is not decoder:
            live = {version.identity for version in self._models.versions()}
            self._prompts = {identity: one for identity, one in self._prompts.items() if identity in live}
            prompts = self._prompts[decoder.identity] = Prompts(decoder, self._settings)
        return prompts

    def names(self) -> list[str]:
        """Language models that answer, sorted."""
        return list(self._models.decoders())

    def _only(self) -> str:
        names = self.names()
        if len(names) > 1:
            raise UnknownModelError(None, names)
        if not names:
            raise NoModelError("no language model is live on this worker yet; publish one to control")
        return names[0]
