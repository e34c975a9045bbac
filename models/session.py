"""An ONNX Runtime session of ours: one thread, nobody's fallback but our own, and quiet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from core.errors import ManifestError, ModelError
from models import ort
from models.device import CPU, Device


def opened(path: Path, device: Device, who: str, memory: int | None = None) -> Any:
    """A session on the device; on the CPU where auto has to do without one.

    who: the version, for errors. memory: bytes of the device that its arena may take; None: no bound. Raises
    ManifestError for a file that can't be loaded, ProviderMissingError when the device that was asked for isn't there.
    """
    try:
        return _on(path, device, memory)
    except ModelError:
        raise
    except Exception as error:
        raise ManifestError(f"{who}: {path.name} can't be loaded: {error}") from error


def _on(path: Path, device: Device, memory: int | None) -> Any:
    if device.fallback is None:
        try:
            session = _session(path, device.providers_within(memory))
        except Exception as error:
            if device.accelerator is None or device.name != "auto" or device.worked:
                raise
            session = _session(path, [CPU])  # raises what is wrong with the file itself, if that is it
            device.fall_back(f"a session couldn't be made there: {error}")
        device.verify(session.get_providers())
        return session
    return _session(path, [CPU])


def _session(path: Path, providers: list[Any]) -> Any:
    options = ort.runtime.SessionOptions()
    options.intra_op_num_threads = 1  # more pays for large models alone
    options.inter_op_num_threads = 1
    options.log_severity_level = ort.QUIET
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Its own fallback prints, and would turn a GPU's failure in some later run into a slow worker that nobody hears of.
    return ort.runtime.InferenceSession(str(path), options, providers=providers, enable_fallback=0)
