"""A decoder without a model: it spells, token by token, what its prompt held. Each reply says so much of the context
that a wrong one is seen."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

from core.errors import ContextTooLongError, OverloadedError
from models.decoder.decoder import Decoder
from models.decoder.generation import Generation
from models.decoder.message import Message
from models.decoder.turn import Finish, Piece, Sampling, Turn, Usage
from models.language import TEMPLATE
from models.live import LiveModels
from models.manifest import Kind
from models.swap import Course, Stage
from models.version import LiveVersion

BEGIN: Final = 1_000_001
END: Final = 1_000_002
ROLES: Final = {"system": 1_000_010, "user": 1_000_011, "assistant": 1_000_012, "tool": 1_000_013}


class StandIn(Decoder):
    """A token is a character; marks are tokens that no text has. Until `go` is set it makes at most `most` tokens."""

    tokenizer_sha256 = "characters"

    def __init__(self, version: str = "1", window: int = 4000, template: str = "t1") -> None:
        self.version = version
        self.held_tokens: dict[str, tuple[int, ...]] = {}
        self.turns: list[Turn] = []
        stated: Any = self  # what a decoder never changes
        stated.manifest = SimpleNamespace(name="parrot", version=version, kind=Kind.DECODER, files={TEMPLATE: template})
        stated.identity = f"parrot@{version}"
        stated.defaults, stated.window, stated.end_tokens = Sampling(), window, frozenset({END})
        self.most = 10**9
        self.go = asyncio.Event()
        self.full = False
        self._tasks: dict[Generation, asyncio.Task[None]] = {}
        self._last: dict[str, asyncio.Task[None]] = {}

    def render(self, messages: Sequence[Message], *, generate: bool = True) -> tuple[int, ...]:
        tokens: list[int] = []
        if not messages or messages[0].role != "system":
            tokens += [BEGIN, ROLES["system"], *self.encode("be kind"), END]
        for message in messages:
            tokens += [BEGIN, ROLES[message.role], *self.encode(message.content), END]
        return (*tokens, BEGIN, ROLES["assistant"]) if generate else tuple(tokens)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, (token for token in tokens if token < 1_000_000)))

    def submit(self, turn: Turn) -> Generation:
        if self.full:
            raise OverloadedError("the queue is full")
        if len(turn.tokens) >= self.window:
            raise ContextTooLongError("no room")
        self.turns.append(turn)
        generation = Generation(turn, self._stop, lambda one: None)
        before = self._last.get(turn.session)
        task = asyncio.create_task(self._make(generation, before))
        self._tasks[generation] = self._last[turn.session] = task
        return generation

    async def _make(self, generation: Generation, before: asyncio.Task[None] | None) -> None:
        turn = generation.turn
        held = self.held_tokens.get(turn.session, ())
        cached = next(
            (i for i, (a, b) in enumerate(zip(held, turn.tokens, strict=False)) if a != b),
            min(len(held), len(turn.tokens)),
        )
        finish = Finish.STOP
        try:
            if before is not None:
                await asyncio.wait([before])
            said = self.says(turn.tokens)
            async with asyncio.timeout(turn.within_s):
                for token in (*self.encode(said), END)[len(turn.given) :]:
                    if len(generation.tokens) >= turn.sampling.max_tokens:
                        finish = Finish.LENGTH
                        break
                    while len(generation.tokens) >= self.most_of(turn):
                        await self.go.wait()
                    generation.put(Piece((token,), self.decode([token])))
                    await asyncio.sleep(0)
        except TimeoutError:
            finish = Finish.DEADLINE
        except asyncio.CancelledError:
            finish = Finish.CANCELLED
        self.held_tokens[turn.session] = (*turn.tokens, *generation.tokens)
        generation.end(
            Usage(
                finish=finish,
                prompt=len(turn.tokens),
                cached=cached,
                new=len(generation.tokens),
                seed=turn.sampling.seed or 0,
                queued_s=0.0,
                first_s=0.001,
                total_s=0.002,
            )
        )

    def says(self, tokens: Sequence[int]) -> str:
        """What it answers a prompt."""
        return spelled(tokens)

    def most_of(self, turn: Turn) -> int:
        """Tokens that it makes of a reply until it may go on."""
        return self.most

    def _stop(self, generation: Generation) -> None:
        """Within a tick: one that has not begun has to be begun to say how it ends."""
        asyncio.get_running_loop().call_later(0.001, self._tasks[generation].cancel)

    async def forget(self, session: str) -> None:
        self.held_tokens.pop(session, None)
        for generation, task in self._tasks.items():
            if generation.turn.session == session:
                task.cancel()

    def slot(self, session: str) -> int | None:
        return 0

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def join(self, within_s: float = 10.0) -> None:
        """It has no thread."""

    async def run(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


def spelled(tokens: Sequence[int]) -> str:
    """What it says of a prompt: how many were said, the end of the last one, and a hash of all."""
    said: list[list[int]] = []
    for token in tokens:
        if token in ROLES.values():
            said.append([])
        elif token < 1_000_000:
            said[-1].append(token)
    digest = hashlib.sha256(repr(tuple(tokens)).encode()).hexdigest()[:8]
    last = "".join(map(chr, said[-2])) if len(said) > 1 else ""
    return f"{len(said) - 1} said, last {last[-20:]!r}, {digest}"


def live(models: LiveModels, decoder: StandIn, name: str = "parrot") -> LiveVersion:
    """Makes it the active version of a model, in the place of the one before."""
    from core.events import Deployment
    from models.deployed import Deployed
    from models.routing import Routing

    course = Course(f"{name}@{decoder.version}")
    for stage in (Stage.VERIFYING, Stage.WARMING):
        course.to(stage)
    version = LiveVersion(decoder.manifest, decoder, course)
    deployment = Deployment(model=name, revision=1, active=decoder.version, since=0)
    model = models._models.setdefault(name, Deployed(deployment))
    model.wanted = deployment
    models._flip(model, Routing(name, version))
    models._tell(name)
    return version
