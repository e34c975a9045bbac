"""float32 to float16 and back by ONNX Runtime, in a quarter of numpy's time: it uses the processor's instructions."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models import ort

_HALVING: Final = bytes.fromhex(
    "08083a400a170a01781201792204436173742a090a02746f180aa001021201635a10"
    "0a0178120b0a09080112050a0312016e62100a0179120b0a09080a12050a0312016e42040a001011"
)
"""A graph of one Cast, x f32 [n] to y f16 [n]; workers have no package that makes graphs."""
_DOUBLING: Final = bytes.fromhex(
    "08083a400a170a01781201792204436173742a090a02746f1801a001021201635a10"
    "0a0178120b0a09080a12050a0312016e62100a0179120b0a09080112050a0312016e42040a001011"
)
"""And back."""


def to_half(values: NDArray[np.float32]) -> NDArray[np.float16]:
    """Rounded to the nearest; what is too large becomes infinite. Same shape."""
    halves: NDArray[np.float16] = _cast(_HALVING, values)
    return halves


def to_float(values: NDArray[np.float16]) -> NDArray[np.float32]:
    """Exactly. Same shape."""
    floats: NDArray[np.float32] = _cast(_DOUBLING, values)
    return floats


def _cast(graph: bytes, values: Any) -> Any:
    return _session(graph).run(["y"], {"x": values.reshape(-1)})[0].reshape(values.shape)


@cache
def _session(graph: bytes) -> Any:
    options = ort.runtime.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
