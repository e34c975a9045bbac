"""Where models run: asked for by name, and verified after loading, since ONNX Runtime falls back in silence."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from core.errors import ProviderMissingError
from models import ort
from models.accelerators import ACCELERATORS, Accelerator
from models.budget import Budget
from models.buffers import Bytes

log = logging.getLogger(__name__)

CUDA: Final = ACCELERATORS["cuda"].provider
CPU: Final = "CPUExecutionProvider"

Provider = str | tuple[str, dict[str, Any]]


@dataclass(slots=True)
class Device:
    """One accelerator, or the CPU. Make it with Device.of; all runtimes of a worker share it."""

    name: str
    """As asked for: auto, cpu, cuda or cuda:N."""
    kind: str = "cpu"
    """cpu, or which of ACCELERATORS models are to run on."""
    index: int = 0
    """Which of several of a kind."""
    memory: Budget = field(default_factory=Budget)
    """What versions hold of its memory."""
    bound: bool = False
    """Whether sessions are asked through buffers that are bound to them; on an accelerator they are."""
    fallback: str | None = None
    """Why models run on the CPU though an accelerator was to be taken; None as long as none had to."""
    worked: bool = False
    """Whether a session has run there: what fails then is the model's fault, not the device's."""
    _told: bool = field(default=False, repr=False)

    @classmethod
    def of(cls, name: str, available: Sequence[str] | None = None, memory: int | None = None) -> Self:
        """Chooses for auto, cpu, or an accelerator with its number (settings have checked the spelling).

        available: what this build of ONNX Runtime can do; by default it is asked. memory: bytes that versions may hold
        on an accelerator; None: as much as there is. Raises ProviderMissingError when an accelerator is asked for and
        the build has none of it.
        """
        built = ort.runtime.get_available_providers() if available is None else available
        if name == "cpu":
            return cls(name)
        kind, _, index = name.partition(":")
        if name == "auto":
            kind = next((kind for kind, one in ACCELERATORS.items() if one.provider in built), "cpu")
            if kind == "cpu":
                return cls(name)
        elif ACCELERATORS[kind].provider not in built:
            raise ProviderMissingError(
                f"device {name} needs {ACCELERATORS[kind].provider}, but this onnxruntime has only {', '.join(built)}; "
                "install the gpu extra in place of cpu, or set HOMUNCULUS_DEVICE to auto or cpu"
            )
        if available is None:
            ACCELERATORS[kind].prepare()
        return cls(name, kind, int(index or 0), Budget(memory), bound=True)

    @property
    def accelerator(self) -> Accelerator | None:
        """What models are to run on; None: the CPU."""
        return ACCELERATORS.get(self.kind)

    @property
    def providers(self) -> list[Provider]:
        """What to hand to an InferenceSession, best first."""
        return self.providers_within(None)

    def providers_within(self, memory: int | None) -> list[Provider]:
        """The same, for a session whose arena may take so many bytes of the device."""
        accelerator = self.accelerator
        if accelerator is None:
            return [CPU]
        return [(accelerator.provider, accelerator.options(self.index, memory)), CPU]

    @property
    def runs_on(self) -> str:
        """cpu, or an accelerator and its number, as far as is known: cuda:0."""
        return "cpu" if self.kind == "cpu" or self.fallback else f"{self.kind}:{self.index}"

    def used(self) -> int | None:
        """Bytes of its memory that are taken, by whomever; None where nobody says."""
        accelerator = self.accelerator
        return None if accelerator is None or self.fallback else accelerator.used(self.index)

    def pinned(self, size: int) -> Bytes | None:
        """Memory of this machine that it copies by itself; None where there is none."""
        accelerator = self.accelerator
        return None if accelerator is None or self.fallback else accelerator.pinned(self.index, size)

    def verify(self, got: Sequence[str]) -> None:
        """Compares the providers that a session got with those that were asked for.

        Raises ProviderMissingError when an accelerator was asked for and the session runs without it. auto takes the
        CPU then, and says so.
        """
        accelerator = self.accelerator
        if accelerator is None:
            if self.name == "auto":
                self._tell(f"this onnxruntime has no {', '.join(one.provider for one in ACCELERATORS.values())}")
            return
        if accelerator.provider not in got:
            self.fall_back(f"the session got only {', '.join(got)}")
        else:
            self.worked = True

    def fall_back(self, why: str) -> None:
        """From now on models run on the CPU, if that is what auto was asked for: loudly. Else raises
        ProviderMissingError."""
        accelerator = self.accelerator
        provider = accelerator.provider if accelerator else CPU
        if self.name != "auto":
            raise ProviderMissingError(
                f"device {self.name} was asked for, but {why}: is there a GPU, with a driver and CUDA libraries that "
                "this onnxruntime was built for?"
            )
        self.fallback = self.fallback or f"{provider} couldn't be used: {why}"
        self.memory.limit = None  # it was the accelerator's
        self._tell(f"{provider} couldn't be used")

    def _tell(self, why: str) -> None:
        if not self._told:
            self._told = True
            log.warning("models run on the CPU: device is auto and %s", why)
