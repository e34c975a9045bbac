"""From a torch module over tokens to an ONNX graph with any number of texts and tokens."""

from __future__ import annotations

import contextlib
import io
import logging
from pathlib import Path
from typing import Any, Final

from core.errors import ConversionError
from models.embedder.feed import IDS, MASK, TYPES

LARGEST: Final = 2_000_000_000
"""Bytes of weights beyond which they are kept in a file beside the graph: protobuf ends at 2^31."""


def imported() -> tuple[Any, Any]:
    """torch and transformers. Raises ConversionError that names the extra where they aren't installed."""
    try:
        import onnxscript  # noqa: F401  which torch's exporter is made of
        import torch
        import transformers
    except ImportError as error:
        raise ConversionError(
            f"{error.name} isn't installed: exporting needs the extra export (pip install -e '.[export]')"
        ) from None
    return torch, transformers


def write_graph(module: Any, path: Path, output: str, tokens: int, who: str, *, types: bool = False) -> None:
    """Writes input_ids, attention_mask (batch, tokens) int64 -> output, what the module makes of them.

    tokens: the most of a text. types: it takes token_type_ids too. Raises ConversionError for what torch can't export.
    """
    torch, _ = imported()
    ids = torch.ones((2, min(9, tokens)), dtype=torch.int64)
    dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=tokens)}
    names = [IDS, MASK, TYPES] if types else [IDS, MASK]
    size = sum(each.numel() * each.element_size() for each in module.parameters())
    try:
        with _quiet():
            torch.onnx.export(
                module.eval(),
                (ids, *(torch.ones_like(ids) for _ in names[1:])),
                str(path),
                input_names=names,
                output_names=[output],
                dynamic_shapes=tuple(dims for _ in names),
                dynamo=True,
                external_data=size > LARGEST,
                verbose=False,
            )
    except Exception as error:  # whatever its exporter stumbles over
        why = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ConversionError(f"torch can't export {who}: {why}") from error


def tokens_of(model: Any, tokenizer: Any) -> int:
    """The most tokens of a text: what the tokenizer says, as far as the model has positions; 512 where neither says."""
    torch, _ = imported()
    most = [int(tokenizer.model_max_length)]
    for name, each in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(each, torch.nn.Embedding):
            # RoBERTa's positions begin behind the one of its padding.
            most.append(each.num_embeddings - (0 if each.padding_idx is None else each.padding_idx + 1))
    said = min(most)
    return said if said < 1_000_000 else 512  # transformers fills in 1e30


def write_tokenizer(tokenizer: Any, path: Path, who: str) -> None:
    """Raises ConversionError for a tokenizer that is Python code."""
    if not getattr(tokenizer, "is_fast", False):
        raise ConversionError(f"{who} has a {type(tokenizer).__name__}, which can't be written as {path.name}")
    path.write_text(tokenizer.backend_tokenizer.to_str(), "utf-8")


@contextlib.contextmanager
def _quiet() -> Any:
    """Its exporter prints, and logs what it tried."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
