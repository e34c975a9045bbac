"""Where models run: asked for by name, and verified after loading, since ONNX Runtime falls back in silence."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from core.errors import ProviderMissingError
from models import ort

log = logging.getLogger(__name__)

CUDA: Final = "CUDAExecutionProvider"
CPU: Final = "CPUExecutionProvider"

Provider = str | tuple[str, dict[str, Any]]


@dataclass(slots=True)
class Device:
    """One accelerator, or the CPU. Make it with Device.of; all runtimes of a worker share it."""

    name: str
    """As asked for: auto, cpu, cuda or cuda:N."""
    providers: list[Provider]
    """What to hand to an InferenceSession, best first."""
    _told: bool = field(default=False, repr=False)

    @classmethod
    def of(cls, name: str, available: Sequence[str] | None = None) -> Self:
        """Chooses the providers for auto, cpu, cuda or cuda:N (settings have checked the spelling).

        available: what this build of ONNX Runtime can do; by default it is asked. Raises ProviderMissingError when
        cuda is asked for and the build has none of it.
        """
        built = ort.runtime.get_available_providers() if available is None else available
        cuda = name.startswith("cuda")
        if cuda and CUDA not in built:
            raise ProviderMissingError(
                f"device {name} needs {CUDA}, but this onnxruntime has only {', '.join(built)}; "
                "install the gpu extra in place of cpu, or set HOMUNCULUS_DEVICE to auto or cpu"
            )
        index = int(name.partition(":")[2] or 0)
        if cuda or (name == "auto" and CUDA in built):
            return cls(name, [(CUDA, {"device_id": index}), CPU])
        return cls(name, [CPU])

    def verify(self, got: Sequence[str]) -> None:
        """Compares the providers that a session got with those that were asked for.

        Raises ProviderMissingError when cuda was asked for and the session runs without it. auto takes the CPU
        then, and says so once.
        """
        if CUDA in got or self.name == "cpu":
            return
        if self.providers == [CPU]:
            self._tell(f"this onnxruntime has no {CUDA}")
            return
        if self.name != "auto":
            raise ProviderMissingError(
                f"device {self.name} was asked for, but the session got only {', '.join(got)}: is there a GPU, with "
                "a driver and CUDA libraries that this onnxruntime was built for?"
            )
        self._tell(f"{CUDA} couldn't be used")

    def _tell(self, why: str) -> None:
        if not self._told:
            self._told = True
            log.warning("models run on the CPU: device is auto and %s", why)
