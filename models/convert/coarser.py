"""ONNX graphs in fewer bits: fp16 and int8, by ONNX Runtime's own tools."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from core.errors import ConversionError
from models import ort
from models.convert.boosters import NEEDED
from models.engine import Arrays, rows_of

LARGEST: Final = 1_500_000_000
"""Bytes of a graph in one file; protobuf ends at 2 GB."""
QUANTISED: Final = ("MatMul", "Gemm", "Conv")
CALIBRATION: Final = 64
"""Rows that int8 needs at least: the range of each activation is what they show, and what lies beyond is cut."""

BATCH: Final = 256
"""Rows that are computed at once to see ranges."""

Make = Callable[[Path, Path, Arrays, str], None]
"""(model in full precision, file to write, rows for its inputs, name for errors). Raises ConversionError."""


def fp16(model: Path, into: Path, rows: Arrays, who: str) -> None:
    """Weights and activations in half precision; inputs and outputs stay what they are."""
    with _tools(who, "fp16"):
        import onnx
        from onnxruntime.transformers.float16 import convert_float_to_float16

        graph = convert_float_to_float16(onnx.load(str(model)), keep_io_types=True)
        if not any(weight.data_type == onnx.TensorProto.FLOAT16 for weight in graph.graph.initializer):
            raise ConversionError(_nothing(who, "fp16", graph))
        _save(graph, into)


def int8(model: Path, into: Path, rows: Arrays, who: str) -> None:
    """Weights and activations of the matrix products in 8 bits, their ranges fixed by every second row.

    Fixed, so that an answer doesn't depend on what else is in the batch; 7 bits of the weights, so that it doesn't
    depend on whether the processor saturates sums (x86 without VNNI does).
    """
    given = rows_of(rows)
    if given < CALIBRATION:
        raise ConversionError(
            f"{who}: int8 needs {CALIBRATION} rows or more that are like those to come, and there are {given}: "
            "give them with --rows FILE, a JSON object of fields a line"
        )
    with _tools(who, "int8"):
        import onnx
        from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

        class Reader(CalibrationDataReader):  # type: ignore[misc]  # of a library without types
            left = iter(range(0, given, 2 * BATCH))

            def get_next(self) -> dict[str, Any] | None:
                begin = next(self.left, None)
                if begin is None:
                    return None
                return {name: array[begin : begin + 2 * BATCH : 2] for name, array in rows.items()}

        quantize_static(
            onnx.load(str(model)),
            str(into),
            Reader(),
            op_types_to_quantize=list(QUANTISED),
            per_channel=True,
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        graph = onnx.load(str(into))
        if not any(weight.data_type == onnx.TensorProto.INT8 for weight in graph.graph.initializer):
            into.unlink()
            raise ConversionError(_nothing(who, "int8", graph))
        _save(graph, into)


COARSER: Final[Mapping[str, Make]] = {"fp16": fp16, "int8": int8}
"""What can be made, by name."""


@contextmanager
def _tools(who: str, name: str) -> Iterator[None]:
    """The tools print, warn, log, and need their folder on the path; what they raise is all that anybody is told."""
    path, root = list(sys.path), logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    sys.path.append(str(Path(ort.runtime.__file__).parent / "transformers"))
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    except ConversionError:
        raise
    except ImportError as error:
        raise ConversionError(f"{who} can't be made {name}: {NEEDED} ({error.name} is missing)") from None
    except Exception as error:  # whatever they stumble over
        said = " ".join(str(error).split())[:300]
        raise ConversionError(f"{who} can't be made {name}: {type(error).__name__}: {said}") from error
    finally:
        sys.path[:] = path
        root.setLevel(level)


def _nothing(who: str, name: str, graph: Any) -> str:
    operators = ", ".join(sorted({node.op_type for node in graph.graph.node} - {"Cast"})) or "no operator"
    return f"{who} would gain nothing from {name}: of its operators ({operators}) none has weights that it could hold"


def _save(graph: Any, into: Path) -> None:
    import onnx

    large = graph.ByteSize() > LARGEST
    onnx.save(graph, str(into), save_as_external_data=large, location=f"{into.name}.data" if large else None)
