"""A cross-encoder whose scores one can count: how many words of a passage are a question's, each time they meet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.folder import ModelFolder, hashes
from tests.unit.knowledge.bert import WORDS, sentence_folder

SPECIAL = 4
"""The first ids are [PAD], [UNK], [CLS] and [SEP]."""
NOT_FINITE, FAILS = "passage", ":"
"""Words that make a pair's score NaN, and its run fail."""


def ranker(
    store: Path, name: str = "ranks", version: str = "1", weight: float = 1.0, tokens: int = 24, **changes: Any
) -> ModelFolder:
    """STORE/NAME/VERSION of one whose score is weight times the words that both sides have."""
    path = store / name / version
    path.mkdir(parents=True)
    onnx.save(graph(weight), path / "model.onnx")
    source = store.parent / "words"
    if not source.exists():
        sentence_folder(source)
    (path / "tokenizer.json").write_text((source / "tokenizer.json").read_text())
    manifest = {
        "name": name,
        "version": version,
        "kind": "reranker",
        "ranking": {"tokens": tokens, "golden": [{"question": "the cat", "passage": "a cat", "score": weight}]},
        "files": hashes(path),
    }
    (path / "manifest.json").write_text(json.dumps(manifest | changes))
    return ModelFolder.open(path, name, version)


def graph(weight: float) -> onnx.ModelProto:
    """score = weight * the sum over all pairs of equal words, one of token type 0 and one of type 1."""
    table = np.zeros(len(WORDS) - 1, np.float32)  # one row too few: the last word is in none
    table[WORDS.index(NOT_FINITE)] = np.nan
    constants: dict[str, Any] = {
        "special": np.array(SPECIAL, np.int64),
        "first": np.array(0, np.int64),
        "second": np.array(1, np.int64),
        "across": np.array([1], np.int64),
        "down": np.array([2], np.int64),
        "both_axes": np.array([1, 2], np.int64),
        "table": table,
        "weight": np.array(weight, np.float32),
    }
    nodes = [
        helper.make_node("GreaterOrEqual", ["input_ids", "special"], ["words"]),
        helper.make_node("Cast", ["attention_mask"], ["there"], to=TensorProto.BOOL),
        helper.make_node("And", ["words", "there"], ["told"]),
        helper.make_node("Equal", ["token_type_ids", "first"], ["in_first"]),
        helper.make_node("Equal", ["token_type_ids", "second"], ["in_second"]),
        helper.make_node("And", ["told", "in_first"], ["asks"]),
        helper.make_node("And", ["told", "in_second"], ["answers"]),
        helper.make_node("Unsqueeze", ["input_ids", "down"], ["ids_down"]),
        helper.make_node("Unsqueeze", ["input_ids", "across"], ["ids_across"]),
        helper.make_node("Equal", ["ids_down", "ids_across"], ["same"]),
        helper.make_node("Unsqueeze", ["asks", "down"], ["asks_down"]),
        helper.make_node("Unsqueeze", ["answers", "across"], ["answers_across"]),
        helper.make_node("And", ["asks_down", "answers_across"], ["meets"]),
        helper.make_node("And", ["meets", "same"], ["both"]),
        helper.make_node("Cast", ["both"], ["counted"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["counted", "both_axes"], ["count"], keepdims=0),
        helper.make_node("Gather", ["table", "input_ids"], ["looked_up"]),
        helper.make_node("ReduceSum", ["looked_up", "across"], ["odd"], keepdims=0),
        helper.make_node("Mul", ["count", "weight"], ["weighed"]),
        helper.make_node("Add", ["weighed", "odd"], ["score"]),
    ]
    inputs = [
        helper.make_tensor_value_info(given, TensorProto.INT64, ["batch", "tokens"])
        for given in ("input_ids", "attention_mask", "token_type_ids")
    ]
    output = helper.make_tensor_value_info("score", TensorProto.FLOAT, ["batch"])
    made = helper.make_graph(
        nodes, "ranks", inputs, [output], [numpy_helper.from_array(value, key) for key, value in constants.items()]
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
