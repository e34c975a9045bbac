"""From a cross-encoder of transformers or sentence-transformers to a reranker version: pairs of texts to one score."""

from __future__ import annotations

import asyncio
import json
from inspect import signature
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from core.errors import ConversionError
from models.convert.export.classifier import CLOSE, config_of, model_of
from models.convert.export.graph import imported, tokens_of, write_graph, write_tokenizer
from models.convert.version import making
from models.device import Device
from models.embedder.feed import IDS, MASK, TYPES
from models.folder import ModelFolder, hashes
from models.inference import InferenceThread
from models.manifest import MODEL, Kind, Manifest
from models.ranking import TOKENIZER, GoldenPair, Ranking
from models.reranker import Reranker

OUTPUT: Final = "score"
TOKENS: Final = 512
"""Of a pair at most, whatever the model was trained for: a passage here has 160."""
EXAMPLES: Final = (
    ("when do I get my money back", "A refund is paid to the customer's bank account within five working days."),
    ("when do I get my money back", "A partition has one owner; a hot session can't be split."),
    ("what is a table", "a"),
    ("Wer jagt Viktor?", "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich."),
)
PROBES: Final = (
    *EXAMPLES,
    ("a", ""),
    ("1 + 1 = 2?", "UPPER and lower"),
    ("how wide is the sea", "The sea is wide, and nobody knows its end. " * 60),
)
"""What both sides must agree on, one by one and in batches; the last is cut."""
MARKS: Final = ("sentence_transformers", "sbert_ce_default_activation_function")
"""What config.json of a cross-encoder of sentence-transformers has, newer and older ones."""


def reranker(source: Path, store: Path, *, name: str, version: str, licence: str | None = None) -> ModelFolder:
    """Makes STORE/NAME/VERSION of a folder whose architecture ends in ForSequenceClassification, with one label: its
    logit is the score.

    Golden pairs are torch's own. Raises ConversionError for another folder, for what torch can't export, and where the
    graph computes something else than torch.
    """
    config = config_of(source)
    torch, transformers = imported()
    model, tokenizer = model_of(transformers, source)
    if model.config.num_labels != 1:
        raise ConversionError(
            f"{source.name} has {model.config.num_labels} labels: a reranker has one, whose logit is the score"
        )
    tokens = min(TOKENS, tokens_of(model, tokenizer))
    types = TYPES in tokenizer.model_input_names and TYPES in signature(model.forward).parameters
    module = _scoring(torch, model, types)
    scores = np.array([_score(torch, module, tokenizer, pair, tokens) for pair in PROBES], np.float32)
    with making(store, name, version) as part:
        write_tokenizer(tokenizer, part / TOKENIZER, source.name)
        who = f"{source.name} ({config['model_type']})"
        write_graph(module, part / MODEL, OUTPUT, tokens, who, types=types)
        golden = tuple(
            GoldenPair(question=question, passage=passage, score=round(float(score), 6))
            for (question, passage), score in zip(EXAMPLES, scores[: len(EXAMPLES)], strict=True)
        )
        Manifest(
            name=name,
            version=version,
            kind=Kind.RERANKER,
            files=hashes(part),
            ranking=Ranking(tokens=tokens, output=OUTPUT, golden=golden),
            licence=licence,
            made_by=f"models.convert.export of {source.resolve().name} ({config['model_type']})",
        ).write(part)
        _prove(ModelFolder.open(part, name, version), scores)
    return ModelFolder.open(store / name / version, name, version)


def ranks(source: Path) -> bool:
    """Whether a folder says of itself that it is a cross-encoder of sentence-transformers."""
    told: dict[str, Any] = {}
    for file in ("config.json", "config_sentence_transformers.json"):
        try:
            told |= json.loads((source / file).read_bytes())
        except (OSError, ValueError, TypeError):
            continue
    return told.get("model_type") == "CrossEncoder" or any(mark in told for mark in MARKS)


def _scoring(torch: Any, model: Any, types: bool) -> Any:
    class Scoring(torch.nn.Module):  # type: ignore[misc]  # torch is there or not
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
            given = {"token_type_ids": token_type_ids} if types else {}
            return self.model(input_ids=input_ids, attention_mask=attention_mask, **given).logits

    return Scoring().eval()


def _score(torch: Any, module: Any, tokenizer: Any, pair: tuple[str, str], tokens: int) -> float:
    """By transformers' own tokenizer, token types and all."""
    # Of lists, since an empty passage by itself would count as none.
    question, passage = [pair[0]], [pair[1]]
    given = tokenizer(question, passage, truncation="only_second", max_length=tokens, return_tensors="pt")
    with torch.no_grad():
        return float(module(given[IDS], given[MASK], given.get(TYPES))[0, 0])


def _prove(folder: ModelFolder, theirs: NDArray[np.float32]) -> None:
    """As a worker computes it, against torch. Raises ConversionError."""
    thread = InferenceThread()
    ours = Reranker(folder, Device.of("cpu"), thread)
    alone = np.concatenate([ours.pairs([pair]) for pair in PROBES])
    together = ours.pairs(PROBES)
    ours.close()
    asyncio.run(thread.close())
    for got, how in ((alone, "alone"), (together, "in a batch")):
        off = np.abs(got - theirs)
        if not (off <= CLOSE * max(1.0, float(np.abs(theirs).max()))).all():
            question, passage = PROBES[int(off.argmax())]
            raise ConversionError(
                f"the graph of {folder.identity} computes something else than torch: off by {off.max():.2g} for "
                f"{question[:40]!r} and {passage[:40]!r} {how}"
            )
