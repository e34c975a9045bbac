"""Replies that follow a JSON schema: llguidance says which tokens may come next."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask
from numpy.typing import NDArray

from core.errors import GenerationError, SamplingError

LARGEST: Final = 100_000
"""Characters of a schema."""
BLANKS: Final = r"[ \n\t]{0,8}"
"""Between the parts of a value: without a bound a model may go on with blanks for ever."""


class Grammars:
    """Makes grammars for one tokenizer."""

    def __init__(self, tokenizer: Path, vocabulary: int, end_tokens: Iterable[int]) -> None:
        """tokenizer: tokenizer.json. Takes a third of a second for 50,000 tokens."""
        self._tokenizer = LLTokenizer(str(tokenizer), n_vocab=vocabulary, eos_token=sorted(end_tokens))
        self._vocabulary = vocabulary

    def of(self, schema: Mapping[str, Any]) -> Grammar:
        """Raises SamplingError for a schema that can't be followed. Takes milliseconds for a large one."""
        text = json.dumps(schema)
        if len(text) > LARGEST:
            raise SamplingError(f"the schema has {len(text):,} characters; it may have {LARGEST:,}")
        try:
            rules = LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_pattern": BLANKS})
            matcher = LLMatcher(self._tokenizer, rules, log_level=0)
        except ValueError as error:
            raise SamplingError(f"the schema can't be followed: {_reason(str(error))}") from None
        if matcher.is_error():
            raise SamplingError(f"the schema can't be followed: {_reason(matcher.get_error())}")
        grammar = Grammar(matcher, self._vocabulary)
        try:
            grammar.forbid(np.zeros(self._vocabulary, np.float32))  # some are found out with their first token alone
        except GenerationError as error:
            raise SamplingError(str(error)) from None
        return grammar


class Grammar:
    """What one reply may go on with."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._bits = np.zeros((1, (vocabulary + 31) // 32), np.int32)

    @property
    def complete(self) -> bool:
        """The value is whole, and nothing may follow."""
        return bool(self._matcher.is_stopped())

    def forbid(self, logits: NDArray[np.float32]) -> None:
        """Sets what may not come next to -inf. Raises GenerationError where the grammar has come to its limits."""
        fill_next_token_bitmask(self._matcher, self._bits)
        if self._matcher.is_error():
            raise GenerationError(f"the schema can't be followed any further: {_reason(self._matcher.get_error())}")
        allowed = np.unpackbits(self._bits.view(np.uint8), bitorder="little")[: self._vocabulary]
        logits[allowed == 0] = -np.inf

    def accept(self, token: int) -> None:
        """The token has been chosen. Raises GenerationError for one that wasn't allowed."""
        if not self._matcher.consume_token(token):
            raise GenerationError(f"token {token} doesn't follow the schema: {_reason(self._matcher.get_error())}")


def _reason(said: str) -> str:
    """The first line: llguidance goes on with its whole state."""
    return said.partition("\n")[0]
